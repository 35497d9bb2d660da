"""Settings of the gateway, the OpenTelemetry receiver and the Python SDK."""

from pathlib import Path
from typing import Literal

from pydantic import SecretStr, model_validator

from stepstream.config.base import HttpAddress, Port, Section, is_loopback, setting


class ProviderSettings(Section):
    """One model provider behind the gateway: an entry of `gateway.providers`."""

    name: str = setting(..., "Name of the provider in messages and metrics.", min_length=1)
    base_url: HttpAddress = setting(..., "Address before the paths of its API, as `https://api.openai.com`.")
    models: list[str] = setting(..., "Names of the models that it serves; `*` matches any characters.", min_length=1)
    aliases: dict[str, str] = setting(
        {}, 'Its own names of models that callers name otherwise, as `{"fast": "gpt-5-mini"}`.'
    )
    fallbacks: list[str] = setting(
        [],
        "Names of providers that get a call in turn, under the same model name, if this one cannot be reached or "
        "answers 429 or 500 to 529. Their own `aliases` apply; the caller's key does not reach them.",
    )
    protocols: list[Literal["chat", "responses", "anthropic"]] = setting(
        ["chat"], "Protocols that it speaks. The gateway translates other protocols to chat.", min_length=1
    )
    api_key: SecretStr | None = setting(
        None, "Key for calls to the provider; none: the gateway forwards the caller's key. Never printed."
    )
    gives_tokens: bool = setting(
        False, "True if its chat completions accept `return_token_ids` and return token ids and logprobs."
    )
    path_prefix: str = setting("/v1", "Prefix of its paths, in place of OpenAI's `/v1`.")


class ModelPriceSettings(Section):
    """The price of a model's tokens: an entry of `gateway.prices`."""

    model: str = setting(..., "Name of the model; `*` matches any characters.", min_length=1)
    prompt_usd: float = setting(..., "Price of a million tokens of prompts.", unit="US dollars", ge=0)
    response_usd: float = setting(..., "Price of a million tokens of responses.", unit="US dollars", ge=0)


class GatewaySettings(Section):
    """The OpenAI-compatible gateway, which forwards model calls and captures them as steps."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: Port = setting(8080, "Port to listen on.")
    processes: int = setting(
        1,
        "Processes that serve the port. One uses one processor core. Each has a spool of its own, and is started again "
        "if it dies.",
        unit="processes",
        ge=1,
    )
    metrics_port: Port = setting(
        9501,
        "With several processes, the first of their own ports for `/metrics`; each process has the next one. One "
        "process has its metrics at `gateway.port`.",
    )
    upstreams: list[HttpAddress] = setting(
        ["http://127.0.0.1:8000"],
        "Base addresses of inference workers, in use until a worker announces itself on the topic `worker-status`; "
        "separate them by commas in the environment.",
        min_length=1,
    )
    upstream_key: SecretStr | None = setting(
        None,
        "Key that inference workers require (`--api-key` of vLLM). It goes with each call; callers' keys do not. "
        "Never printed.",
    )
    find_workers: bool = setting(
        True, "Use the workers on the topic `worker-status`; false: only those of `gateway.upstreams`."
    )
    max_queue_per_worker: int = setting(
        512,
        "Requests that may wait at a worker beyond its capacity. If all workers of a model have as many, the gateway "
        "answers status 429. A worker of unknown capacity has a capacity of 0.",
        unit="requests",
        ge=1,
    )
    sticky_overload: float = setting(
        1.5,
        "Load of a worker, relative to the mean of the workers of its model, above which running trajectories move to "
        "others.",
        ge=1,
    )
    providers: list[ProviderSettings] = setting(
        [],
        "Model providers. A call goes to the first one whose `models` match, else to the workers. JSON in the "
        "environment.",
    )
    prices: list[ModelPriceSettings] = setting(
        [],
        "Prices of tokens, for the budgets of API keys and the cost of steps: of the gateway's, and in `govern` of all "
        "others that name none. The first entry that matches the model counts. JSON in the environment.",
    )
    require_key: bool = setting(
        False,
        "Reject calls without an API key of `stepstream keys`. If `gateway.host` is not a loopback address, they are "
        "rejected anyway.",
    )
    agent: str = setting("agent", "Agent name of calls without the header `x-stepstream-agent`.")
    consent: Literal["train", "analyse", "none"] = setting(
        "train", "Consent recorded with calls without the header `x-stepstream-consent`."
    )
    tenant: str = setting("default", "Tenant recorded with calls that no API key assigns to a tenant.")
    train_sampling: Literal["force", "mark", "reject"] = setting(
        "mark",
        "Rule for calls to workers that may be trained on and restrict sampling. `mark` records the restriction. "
        "`force` removes top-p, top-k, min-p and penalties from the call. `reject` answers 400.",
    )
    sampling_mask_ids: int = setting(
        0,
        "Largest number of vocabulary ids that workers return for a token of a call that may be trained on and uses "
        "top-p, top-k, min-p or a grammar: with them the learner trains on the token. Tokens with more are not trained "
        "on. 0: none are requested.",
        unit="ids",
        ge=0,
        le=1024,
    )
    context_cache: int = setting(
        20_000,
        "Trajectories in the context cache. The gateway stores only the new part of their prompts.",
        unit="trajectories",
        ge=1,
    )
    context_bytes: int = setting(256 * 1_048_576, "Approximate memory limit of the context cache.", unit="bytes", ge=1)
    history_bytes: int = setting(
        64 * 1_048_576,
        "Disk limit for saved responses and items of the Responses API, which later calls may name "
        "(`previous_response_id`). They lie beside the spool.",
        unit="bytes",
        ge=1,
    )
    history_days: float = setting(7.0, "Retention of saved responses.", unit="days", gt=0)
    upstream_deadline_s: float = setting(
        60.0,
        "Time to retry a call while no worker answers. A call that a worker had for longer is not sent again.",
        unit="s",
        ge=0,
    )
    upstream_attempts: int = setting(
        3,
        "Workers that may fail with a call before the gateway gives it up: the call itself may be what kills them. "
        "Refused connections and status 503 do not count.",
        unit="attempts",
        ge=1,
    )
    upstream_silence_s: float = setting(
        600.0, "Time without a byte after which the gateway gives up a worker's response.", unit="s", gt=0
    )
    answer_mb: int = setting(64, "Largest answer or stream of an upstream; a larger one is cut.", unit="MB", ge=1)
    proxy: SecretStr = setting(
        SecretStr(""),
        "Proxy for calls to providers, as http://user:password@host:port; never printed. Empty: `HTTP_PROXY`, "
        "`HTTPS_PROXY` and `NO_PROXY` of the environment. Calls to workers and to loopback addresses use none.",
    )
    ca_file: Path | None = setting(
        None, "File of certificate authorities (PEM) that upstreams may use besides the system's."
    )
    spool: Path | None = setting(
        None, "Folder of events that Kafka has not acknowledged yet; default: `DATA/spool/gateway`."
    )
    spool_mb: int = setting(
        1024,
        "Disk limit of the spool of each gateway process. Above it, the oldest events are dropped.",
        unit="MB",
        ge=1,
    )
    backlog_mb: int = setting(
        64,
        "Memory limit of events that wait while neither the disk nor Kafka's client accepts them.",
        unit="MB",
        ge=1,
    )
    shutdown_s: float = setting(
        10.0, "Time to finish calls at shutdown, and the same time again to deliver events.", unit="s", gt=0
    )

    @model_validator(mode="after")
    def _check_fallbacks(self) -> "GatewaySettings":
        declared = {provider.name: provider for provider in self.providers}
        for provider in self.providers:
            for name in provider.fallbacks:
                if name not in declared or name == provider.name:
                    others = ", ".join(sorted(declared.keys() - {provider.name})) or "none"
                    raise ValueError(
                        f"fallback '{name}' of '{provider.name}' is no other provider; those are: {others}"
                    )
                if set(provider.protocols).isdisjoint(declared[name].protocols):
                    raise ValueError(f"fallback '{name}' of '{provider.name}' speaks none of its protocols")
        return self

    @property
    def keys_required(self) -> bool:
        """True if calls without an API key are rejected."""
        return self.require_key or not is_loopback(self.host)


class OtlpSettings(Section):
    """OpenTelemetry receiver: `/v1/traces` and `/v1/logs` of the gateway."""

    acknowledge_s: float = setting(
        8.0, "Time to wait for Kafka before a request gets status 503. Exporters give up after 10 s.", unit="s", gt=0
    )
    max_body_mb: int = setting(32, "Largest request after decompression.", unit="MB", ge=1)
    settle_s: float = setting(
        60.0, "Time without a span after which a trace is published although its root has not ended.", unit="s", gt=0
    )
    grace_s: float = setting(
        1.5, "Time to wait for late parts and log records after a trace's root span ended.", unit="s", gt=0
    )
    open_mb: int = setting(
        256,
        "Memory limit of open traces. Above it, the traces without a span for the longest time are published.",
        unit="MB",
        ge=1,
    )
    trajectories: int = setting(
        50_000, "Trajectories whose step count and last step stay in memory.", unit="trajectories", ge=1
    )


class SdkSettings(Section):
    """The Python SDK in an agent's process."""

    enabled: bool = setting(True, "Record events; false: the SDK does nothing.")
    agent: str = setting("agent", "Agent name of trajectories without one.")
    tenant: str = setting("default", "Tenant recorded with each event.")
    consent: Literal["train", "analyse", "none"] = setting("train", "Consent recorded with trajectories without one.")
    spool: Path | None = setting(
        None, "Folder of events that Kafka has not acknowledged yet; default: events wait in memory only."
    )
    spool_mb: int = setting(256, "Disk limit of the spool. Above it, the oldest events are dropped.", unit="MB", ge=1)
    memory_mb: int = setting(
        32, "Memory limit of events that wait. Above it, the oldest events are dropped.", unit="MB", ge=1
    )
    flush_s: float = setting(5.0, "Time to deliver events when the process ends.", unit="s", ge=0)
