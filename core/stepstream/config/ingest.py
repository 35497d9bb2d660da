"""The ways in: the gateway, OpenTelemetry and the SDK."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from stepstream.config.base import HttpAddress, Port, Section


class ProviderSettings(Section):
    """One model provider behind the gateway, as an entry of `gateway.providers`."""

    name: str = Field(min_length=1, description="Name in messages and metrics.")
    base_url: HttpAddress = Field(description="Address before the paths of its API, as https://api.openai.com.")
    models: list[str] = Field(
        min_length=1, description="Names of the models that it serves; `*` stands for any characters."
    )
    protocols: list[Literal["chat", "responses", "anthropic"]] = Field(
        ["chat"], min_length=1, description="Protocols that it speaks; others are translated into chat."
    )
    api_key: SecretStr | None = Field(
        None, description="Key that calls are made with; none: the caller's own goes through. Never printed."
    )
    gives_tokens: bool = Field(
        False, description="Whether its chat completions take `return_token_ids` and give token ids and logprobs."
    )
    path_prefix: str = Field("/v1", description="What its paths begin with where OpenAI's begin with /v1.")


class GatewaySettings(Section):
    """The OpenAI-compatible gateway."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8080, description="Port to listen on.")
    upstreams: list[HttpAddress] = Field(
        ["http://127.0.0.1:8000"],
        min_length=1,
        description="Base addresses of inference workers; comma-separated in the environment.",
    )
    providers: list[ProviderSettings] = Field(
        [],
        description="Model providers, asked before the workers: the first whose `models` fit; JSON in the environment.",
    )
    require_key: bool = Field(False, description="Whether calls without one of our API keys are refused.")
    agent: str = Field("agent", description="Agent name of a call that carries no x-stepstream-agent header.")
    consent: Literal["train", "analyse", "none"] = Field(
        "train", description="Consent recorded with calls that carry no x-stepstream-consent header."
    )
    tenant: str = Field("default", description="Tenant recorded with each call.")
    context_cache: int = Field(
        20_000, ge=1, description="Trajectories whose steps are remembered, to store only what is new."
    )
    context_bytes: int = Field(
        256 * 1_048_576, ge=1, description="Most bytes, roughly, that the remembered steps may take in memory."
    )
    history_bytes: int = Field(
        64 * 1_048_576,
        ge=1,
        description="Most bytes on disk, beside the spool, of conversations for `previous_response_id` at upstreams "
        "that keep none, and of items that calls of the Responses API may name.",
    )
    history_days: float = Field(7.0, gt=0, description="Days for which these are kept.")
    upstream_deadline_s: float = Field(
        60.0, ge=0, description="Seconds for which a call is tried again while no worker answers it."
    )
    upstream_silence_s: float = Field(
        600.0, gt=0, description="Seconds without a byte after which a worker's answer is given up."
    )
    spool: Path | None = Field(
        None,
        description="Local folder of events that Kafka does not have yet; default: DATA/spool/gateway.",
    )
    spool_mb: int = Field(
        1024, ge=1, description="Most MB of events on disk, for each gateway process; beyond, the oldest are given up."
    )
    backlog_mb: int = Field(
        64, ge=1, description="Most MB of events in memory while neither the disk nor Kafka's client takes them."
    )
    shutdown_s: float = Field(
        10.0, gt=0, description="Seconds to finish calls when told to stop, and again to deliver events."
    )


class OtlpSettings(Section):
    """OpenTelemetry in: `/v1/traces` and `/v1/logs` of the gateway."""

    acknowledge_s: float = Field(
        8.0, gt=0, description="Seconds to wait for Kafka before a request is answered 503; exporters give up after 10."
    )
    max_body_mb: int = Field(32, ge=1, description="Largest request in MB, once decompressed.")
    settle_s: float = Field(
        60.0, gt=0, description="Seconds without a span after which a trace whose root has not ended is told as it is."
    )
    grace_s: float = Field(
        1.5, gt=0, description="Seconds to wait for a trace's last parts and log records after its root span ended."
    )
    open_mb: int = Field(
        256,
        ge=1,
        description="MB of traces held in memory; beyond it the ones longest without a span are told as they are.",
    )
    trajectories: int = Field(50_000, ge=1, description="Trajectories whose step count and last step are remembered.")


class SdkSettings(Section):
    """The Python SDK, in an agent's own process."""

    enabled: bool = Field(True, description="Whether anything is recorded; false: the SDK does nothing.")
    agent: str = Field("agent", description="Agent name of a trajectory that is given none.")
    tenant: str = Field("default", description="Tenant recorded with each event.")
    consent: Literal["train", "analyse", "none"] = Field(
        "train", description="Consent recorded with a trajectory that is given none."
    )
    spool: Path | None = Field(
        None, description="Local folder of events that Kafka does not have yet; default: they wait in memory only."
    )
    spool_mb: int = Field(256, ge=1, description="Most MB of events on disk; beyond, the oldest are given up.")
    memory_mb: int = Field(32, ge=1, description="Most MB of events that wait in memory; beyond, the oldest are lost.")
    flush_s: float = Field(5.0, ge=0, description="Seconds to deliver events when the process ends.")
