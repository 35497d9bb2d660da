"""Settings of the embedded stack: its services, the console, inference workers, the fleet and the demo."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import SecretStr, model_validator

from stepstream.config.base import HttpAddress, OptionalHttpAddress, Port, Section, reached_by_tls, setting

_ROLE_RULE = re.compile(r".+=(viewer|operator|admin)")


class StoreSettings(Section):
    """The sink job, which inserts into ClickHouse, and the embedded store service."""

    host: str = setting("127.0.0.1", "Address that the embedded store listens on.")
    port: Port = setting(8123, "Port that the embedded store listens on.")
    batch_rows: int = setting(10_000, "Largest number of rows in one insert.", unit="rows", ge=1)
    batch_s: float = setting(0.5, "Longest time to fill an insert.", unit="s", gt=0)
    steps_days: int = setting(
        0, "Age of a step at which its row is deleted; 0: never. Rollups keep the hours.", unit="days", ge=0
    )
    contents_days: int = setting(
        0, "Age of a step at which its messages and response are deleted; 0: never.", unit="days", ge=0
    )
    trajectories_days: int = setting(
        0, "Age of a trajectory at which its row is deleted; 0: never. Rollups keep the hours.", unit="days", ge=0
    )
    feedback_days: int = setting(0, "Age of feedback at which its row is deleted; 0: never.", unit="days", ge=0)
    audit_days: int = setting(
        0,
        "Age at which rows of closures, curation and the governance audit are deleted; 0: never.",
        unit="days",
        ge=0,
    )
    worker_status_days: int = setting(
        0, "Age of a worker's status at which its row is deleted; 0: never.", unit="days", ge=0
    )
    rewrite_hours: int = setting(
        24,
        "Time between two rewritings of the parts with hidden rows of erased persons, counted from midnight (UTC) of "
        "1970-01-01; 0: only by `stepstream erasures rewrite`. A start of the sink begins one that was missed.",
        unit="h",
        ge=0,
    )
    query_s: float = setting(300.0, "Longest time of one statement in the embedded store.", unit="s", ge=1)
    query_memory_bytes: int = setting(
        4 * 1024**3, "Memory of one statement in the embedded store.", unit="bytes", ge=1024**2
    )
    result_bytes: int = setting(
        16 * 1024**3, "Size of one statement's result in the embedded store.", unit="bytes", ge=1024**2
    )


class RegistrySettings(Section):
    """The embedded schema registry service."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: Port = setting(8081, "Port to listen on.")
    write_timeout_s: float = setting(
        8.0, "Time to wait for Kafka before the registry answers a write with an error.", unit="s", gt=0
    )


class BrokerSettings(Section):
    """The embedded Kafka broker."""

    host: str = setting("127.0.0.1", "Address to listen on and to advertise.")
    port: Port = setting(9092, "Port of the listener for clients.")
    controller_port: Port = setting(9093, "Port of the KRaft controller's listener.")
    session_timeout_s: float = setting(
        9.0,
        "Time without a heartbeat after which the controller declares the broker dead, on a busy machine too. After "
        "`kill -9` the broker serves again once this time has passed.",
        unit="s",
        ge=1,
    )
    heap_mb: int = setting(256, "Java heap.", unit="MB", ge=128)
    optimizing_compiler: bool = setting(
        False,
        "Compile hot code with Java's optimizing compiler too, as brokers in production do. An event then takes about "
        "40 % less processor time after some 15 s of load; the start and those seconds take more.",
    )
    home: Path | None = setting(
        None, "Folder of Kafka's jars, which all data folders share; default: the user's cache folder."
    )


class ConsoleSettings(Section):
    """The console."""

    host: str = setting(
        "127.0.0.1", "Address to listen on. Without `console.login`, one that only this machine reaches."
    )
    port: Port = setting(8088, "Port to listen on.")
    login: bool = setting(False, "Ask for name and password (`stepstream console users add`).")
    public_url: OptionalHttpAddress = setting(
        "",
        "Address in people's browsers, as https://console.example; with https, cookies are sent over TLS only.",
    )
    session_hours: float = setting(12.0, "Time after which a person must log in again.", unit="h", gt=0)
    session_key: SecretStr = setting(
        SecretStr(""),
        "Secret that signs sessions; never printed. Empty: a random one, created once in `DATA/secrets`. Several "
        "consoles behind one address need the same.",
    )
    oidc_issuer: OptionalHttpAddress = setting(
        "",
        "OpenID Connect provider where people log in, as https://login.example/realms/main; needs `console.login`. "
        "Empty: local users only.",
    )
    oidc_client_id: str = setting("", "The console's client id at the provider.")
    oidc_client_secret: SecretStr = setting(
        SecretStr(""), "The console's secret at the provider; never printed. Empty: a public client, with PKCE alone."
    )
    oidc_scopes: list[str] = setting(
        ["openid", "profile", "email"], "Scopes to ask for, separated by commas; `openid` is one of them."
    )
    oidc_name_claim: str = setting("preferred_username", "Claim with a person's name for display and audit.")
    oidc_role_claim: str = setting(
        "roles", "Claim with a person's roles, a text or a list; dots lead into objects, as `realm_access.roles`."
    )
    oidc_roles: list[str] = setting(
        [],
        "Role for values of `console.oidc_role_claim`, as `VALUE=ROLE`, separated by commas; the greatest counts, and "
        "nobody without one gets in. Empty: the values viewer, operator and admin.",
    )
    oidc_tenant_claim: str = setting(
        "",
        "Claim with a person's only tenant, `*` for all; nobody without it gets in. Empty: all who log in see all "
        "tenants.",
    )

    @model_validator(mode="after")
    def _check_oidc(self) -> Self:
        if not self.oidc_issuer:
            return self
        if not self.login or not self.oidc_client_id or "openid" not in self.oidc_scopes:
            raise ValueError("oidc_issuer needs login, oidc_client_id, and openid among oidc_scopes")
        if not reached_by_tls(self.oidc_issuer):
            raise ValueError("oidc_issuer must begin with https://, except on this machine")
        if wrong := [rule for rule in self.oidc_roles if not _ROLE_RULE.fullmatch(rule)]:
            raise ValueError(f"oidc_roles has VALUE=ROLE with viewer, operator or admin, not {wrong[0]}")
        return self


class StackSettings(Section):
    """The embedded stack: all processes on one machine under one supervisor."""

    workers: int = setting(1, "Inference workers. Their ports count up from `inference.port`.", unit="processes", ge=0)
    canary_workers: int = setting(
        0, "Number of these workers, the last ones, that serve the track `canary` only.", unit="processes", ge=0
    )
    metrics_port: int = setting(
        9400, "Metrics port of `stepstream up` itself, which counts restarts and failures; 0: none.", ge=0, le=65535
    )
    metrics_port_base: Port = setting(9401, "First metrics port. Each process gets the next one.")
    external: list[Literal["broker", "registry", "store"]] = setting(
        [], "Parts that run elsewhere although their address is the embedded default, separated by commas."
    )
    more: list[Literal["control", "curate", "fleet", "inspect", "judge", "verify"]] = setting(
        [],
        "Optional processes to run, separated by commas: jobs, the controller of the control plane, and the fleet of "
        "demonstration agents.",
    )
    scale: list[str] = setting(
        [], "Workers of jobs that have several, as `label=2`, separated by commas. `store-writer` is one of the jobs."
    )
    start_deadline_s: float = setting(300.0, "Time for all processes to become ready.", unit="s", gt=0)
    base_model: str = setting(
        "",
        "Model to publish if there is none: a folder, or `module:name` of a function that creates it; empty: workers "
        "wait for `stepstream models publish`.",
    )
    new_lineage: bool = setting(
        False, "Publish the base model again as the root of a new lineage, although versions exist."
    )


class FleetSettings(Section):
    """The fleet of agents."""

    gateway_url: HttpAddress = setting("http://127.0.0.1:8080", "Base address of the gateway.")
    environment: str = setting("stepstream.services.fleet.lookup:Lookup", "Environment class as `module:name`.")
    agent: str = setting("lookup-agent", "Agent name in the events.")
    model: str = setting("demo", "Model that the agents call.")
    concurrency: int = setting(64, "Trajectories in flight at the same time.", unit="trajectories", ge=1)
    group_size: int = setting(8, "Attempts at each training task.", unit="attempts", ge=1)
    temperature: float = setting(1.0, "Sampling temperature.", ge=0)
    max_tokens: int = setting(24, "Token limit of one response.", unit="tokens", ge=1)
    seed: int = setting(0, "Seed of the task sampler.")
    max_trajectories: int = setting(
        0, "Number of trajectories after which the fleet stops; 0: unlimited.", unit="trajectories", ge=0
    )
    max_ahead: int = setting(
        1,
        "Versions of work that may run beyond the one that the learner collects; 0: agents wait while it trains "
        "(synchronous); -1: unlimited.",
        unit="versions",
        ge=-1,
    )
    curriculum_spacing: int = setting(
        1,
        "Largest spacing of a task whose groups have equal rewards. It is attempted every second time it is drawn, "
        "after another such group every fourth, up to this number; 1: every time.",
        unit="draws",
        ge=1,
        le=1024,
    )
    gateway_deadline_s: float = setting(
        60.0, "Time to retry an unreachable gateway before the fleet cancels an attempt.", unit="s", gt=0
    )
    shutdown_s: float = setting(
        2.0, "Time to finish trajectories at shutdown. The fleet cancels the others.", unit="s", ge=0
    )
    ledger: Path | None = setting(
        None, "File that lists the events the agents sent; default: `DATA/fleet/ledger.jsonl`."
    )


class DemoSettings(Section):
    """`stepstream demo`: when a run has reached its goal."""

    target: float = setting(0.85, "Held-out success at which the run ends.", unit="share", gt=0, lt=1)
    margin: float = setting(
        0.03,
        "Margin by which training success must exceed the target before an evaluation; below 0: may miss it by.",
        unit="share",
        gt=-1,
        lt=1,
    )
    held_out: int = setting(256, "Held-out tasks of each evaluation.", unit="tasks", ge=1)
    deadline_s: float = setting(240.0, "Time to reach the target.", unit="s", gt=0)
    window: int = setting(
        512, "Newest training trajectories that count for training success.", unit="trajectories", ge=1
    )
    drain_s: float = setting(60.0, "Time for all sent events to reach the tables.", unit="s", gt=0)
    agent: Path = setting(
        Path("examples/python/house_agent.py"),
        "Agent of `stepstream demo-model`: a script with the options of the default one.",
    )
    swaps: int = setting(3, "Versions that `stepstream demo-model` swaps in at least.", unit="versions", ge=1)
    canary_share: float = setting(
        0.25, "Share of trajectories on the canary of `stepstream demo-model`.", unit="share", gt=0, le=1
    )


class InferenceSettings(Section):
    """An inference worker."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: Port = setting(8000, "Port to listen on.")
    url: HttpAddress | None = setting(
        None,
        "Base address at which gateways reach the worker; default: host and port that it listens on. Set it if it "
        "listens on all interfaces and a gateway runs on another machine.",
    )
    worker_id: str = setting("worker-0", "Name on the topic `worker-status`.")
    engine: Literal["torch", "vllm"] = setting("torch", "Engine that generates.")
    model: str = setting("demo", "Model to serve, by its name on the topic `checkpoints`.")
    trusted_keys: list[str] = setting(
        [],
        "Public keys, separated by commas, of the learners whose versions are loaded; empty: any version is. "
        "`stepstream models keygen` creates one.",
    )
    version_cache_bytes: int = setting(
        50 * 1024**3,
        "Limit of the folder `DATA/version-cache`, with versions that were downloaded or completed from their base.",
        unit="bytes",
        ge=0,
    )
    tracks: list[Literal["stable", "canary"]] = setting(
        ["stable", "canary"],
        "Tracks to serve, separated by commas. A worker that holds one set of weights, as vLLM with full weights does, "
        "serves the first.",
        min_length=1,
    )
    tool_parser: str = setting(
        "call_line",
        "Format of the model's tool calls: `call_line`, `call_json`, `none` for plain text, or, for vLLM, "
        "one of its parsers, as `hermes`.",
    )
    reasoning_parser: str = setting(
        "", "Format of the model's reasoning: one of vLLM's parsers, as `qwen3`; empty: reasoning is text."
    )
    max_batch: int = setting(128, "Sequences that the torch engine decodes together.", unit="sequences", ge=1)
    max_model_len: int = setting(
        0,
        "Longest context; 0: the model's own, with vLLM as much of it as fits the memory.",
        unit="tokens",
        ge=0,
    )
    kv_cache_bytes: int = setting(
        1 << 30,
        "Memory that vLLM takes on a CPU for the contexts of running requests and for shared prefixes. Requests wait "
        "for each other while it is full. On a GPU, vLLM takes what is free.",
        unit="bytes",
        ge=1 << 20,
    )
    threads: int = setting(1, "CPU threads of the engine.", unit="threads", ge=1)
    device: str = setting(
        "cpu", "Device of the torch engine: `cpu`, `cuda` or `cuda:1`.", pattern=r"^(cpu|cuda(:\d+)?)$"
    )
    status_every_s: float = setting(2.0, "Interval of status events without a change.", unit="s", gt=0, le=86_400)
    swap: Literal["continue", "drain"] = setting(
        "continue",
        "Running requests at a new version: `continue` with the new weights, or `drain`: end on the old ones first.",
    )
    lora_rank: int = setting(
        0,
        "Largest rank of the adapters that vLLM serves: 1, 8, 16, 32, 64, 128, 256, 320 or 512; 0: no adapters.",
        ge=0,
    )
    max_adapters: int = setting(4, "Adapters that vLLM computes in one batch.", unit="adapters", ge=1)
    smoke_prompts: list[str] = setting(
        [],
        "Texts after which a new version's logits must be finite; in vLLM, its greedy token's logprob, for which new "
        "requests wait.",
    )
    vllm_args: list[str] = setting([], "Further arguments for vLLM's server, separated by commas.")

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        ignored = [name for name in ("reasoning_parser", "lora_rank", "vllm_args") if getattr(self, name)]
        if self.engine != "vllm" and ignored:
            raise ValueError(f"the {self.engine} engine has no {', '.join(ignored)}: unset, or set engine to vllm")
        return self
