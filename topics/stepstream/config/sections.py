"""Every setting of Stepstream, declared once: its name, type, default, unit and a sentence.

A field `bootstrap` of the section `kafka` is `kafka.bootstrap` in a TOML file and
`STEPSTREAM_KAFKA_BOOTSTRAP` in the environment; `loader.py` says which of them wins.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from stepstream.config.objectives import loss_contradictions


class Section(BaseModel):
    """A group of settings; unknown names are refused so that a typing error cannot pass as a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Paths(Section):
    """Where this installation keeps what it may lose and what it may not."""

    data: Path = Field(Path("var"), description="Folder of all local data, logs and reports.")


class Kafka(Section):
    """The cluster that holds the log."""

    bootstrap: str = Field("127.0.0.1:9092", description="host:port list of the brokers.")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How clients connect."
    )
    sasl_mechanism: str = Field("SCRAM-SHA-512", description="Used when security_protocol has SASL in it.")
    sasl_username: str = Field("", description="User name for SASL.")
    sasl_password: SecretStr = Field(SecretStr(""), description="Password for SASL; never printed.")
    ssl_ca_location: str = Field("", description="File of the certificate authority; empty: the system's.")
    replication: int = Field(1, ge=1, description="Replicas of each topic that we create; 3 in production.")
    deadline_s: float = Field(60.0, gt=0, description="Seconds to keep retrying an unreachable broker at start.")


class SchemaRegistry(Section):
    """A Confluent-compatible schema registry."""

    url: str = Field("http://127.0.0.1:8081", description="Base address.")
    user_info: SecretStr = Field(SecretStr(""), description="user:password for basic auth; never printed.")
    timeout_s: float = Field(10.0, gt=0, description="Seconds allowed for one call.")
    deadline_s: float = Field(60.0, gt=0, description="Seconds to keep retrying an unreachable registry.")


class ClickHouse(Section):
    """The analytics store, over ClickHouse's HTTP protocol."""

    url: str = Field("http://127.0.0.1:8123", description="Base address.")
    database: str = Field("stepstream", description="Database that holds our tables and views.")
    user: str = Field("default", description="User name.")
    password: SecretStr = Field(SecretStr(""), description="Password; never printed.")
    deadline_s: float = Field(60.0, gt=0, description="Seconds to keep retrying an unreachable store at start.")


class Metrics(Section):
    """Prometheus: processes that serve HTTP show `/metrics` there, the others on a port of their own."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65535, description="Port of this process; 0: a free one, which is logged.")


class Jobs(Section):
    """The stream jobs."""

    state: Path | None = Field(None, description="Folder of the jobs' RocksDB state; default: DATA/state.")
    batch: int = Field(500, ge=1, description="Most records that a job takes at once.")
    within_s: float = Field(0.01, gt=0, description="Longest wait, in seconds, to fill a batch.")
    dead_letter_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of dead letters in the last 1,000 records at which a job stops loudly.",
    )


class Govern(Section):
    """What makes a record safe to learn from."""

    max_event_bytes: int = Field(900_000, ge=1_000, description="Largest record in bytes; larger: dead letter.")
    max_future_s: float = Field(300.0, ge=0, description="How far ahead of now, in seconds, an event's time may be.")
    dedup_days: int = Field(7, ge=1, description="Days, by an event's own time, for which its id is remembered.")
    pseudonym_key: SecretStr = Field(
        SecretStr(""),
        description="Secret behind the pseudonyms of redacted values; empty: a random one kept in DATA/secrets.",
    )


class Inspect(Section):
    """The sampled search for names of people; how much of a tenant's steps is searched, its policy says."""

    model: str = Field("", description="spaCy model that finds names: an installed package, or a folder; empty: none.")


class Seal(Section):
    """Encryption of what is personal in the log, under keys that erasure destroys."""

    master_key: SecretStr = Field(
        SecretStr(""),
        description="Secret that wraps the keys of persons; empty: a random one kept in DATA/secrets. Programs on "
        "several machines need the same one; losing it makes everything sealed unreadable.",
    )


class Label(Section):
    """Closing and labelling trajectories."""

    idle_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Seconds without a step or feedback after which a trajectory is closed as an event.",
    )
    end_grace_s: float = Field(
        30.0, gt=0, description="Seconds to wait for missing steps after a trajectory's end was told."
    )
    reward_spec: Path | None = Field(
        None, description="TOML file of the reward specification; default: the outcome alone."
    )
    keep_days: int = Field(30, ge=1, description="Days for which a closed trajectory is kept for late feedback.")


class Curate(Section):
    """The job that caps near-duplicates, for tenants whose policy has a cap."""

    history_days: float = Field(
        7.0, gt=0, description="Days of labels that are read again at a start; a tenant's window lies within them."
    )


class Alarms(Section):
    """When the job `watch` raises an alarm: a rewarded component rose while a guard fell."""

    window: int = Field(
        64,
        ge=8,
        description="Fewest groups of attempts (a trajectory without a group counts as one) in each of the windows "
        "that are compared.",
    )
    level: float = Field(
        0.05, gt=0, lt=1, description="Chance that a cohort in which nothing changes ever raises an alarm."
    )
    smallest_effect: float = Field(
        0.25, gt=0, description="Smallest change worth an alarm, in standard deviations of a trajectory's value."
    )
    history: int = Field(
        128, ge=2, description="Windows that are looked back on; what an alarm has told for so long is the new normal."
    )


class Judge(Section):
    """The job that has each step scored by a model, from the user's message that followed it."""

    url: str = Field(
        "", description="Base address of an OpenAI-compatible API, as https://host/v1; empty: nothing is judged."
    )
    model: str = Field("", description="Model that judges.")
    api_key: SecretStr = Field(SecretStr(""), description="Key for it; never printed.")
    agents: list[str] = Field([], description="Agents whose steps are judged; empty: all. Comma-separated.")
    tenants: list[str] = Field([], description="Tenants whose steps are judged; empty: all. Comma-separated.")
    per_minute: float = Field(60.0, gt=0, description="Most questions asked in a minute.")
    timeout_s: float = Field(30.0, gt=0, description="Seconds allowed for one answer.")
    patience_s: float = Field(
        120.0, ge=0, description="Seconds for which a judge that fails is asked again before a step is skipped."
    )


class Verify(Section):
    """The job that has verifiers judge closed trajectories; models that judge are asked as `judge` says."""

    file: Path | None = Field(None, description="Verification file (TOML): which verifier looks at what.")
    sandbox: Literal["strict", "network", "none"] = Field(
        "strict",
        description="What must be sure before an agent's code is run: no network and no files but its own (strict), no "
        "network (network), or nothing (none). Where it cannot be had, nothing is run.",
    )
    parallel: int = Field(4, ge=1, description="Cases that are judged at once.")
    patience_s: float = Field(
        120.0,
        ge=0,
        description="Seconds for which a verifier that cannot work is tried again before a case is skipped.",
    )
    keep_days: int = Field(7, ge=1, description="Days for which a closed trajectory is kept, should a step come late.")
    inference_url: str = Field(
        "http://127.0.0.1:8000",
        description="Base address of the inference worker that serves the process reward model.",
    )


class Store(Section):
    """The job that inserts into ClickHouse, and the embedded store service."""

    host: str = Field("127.0.0.1", description="Address that the embedded store listens on.")
    port: int = Field(8123, description="Port that the embedded store listens on.")
    batch_rows: int = Field(10_000, ge=1, description="Most rows in one insert.")
    batch_s: float = Field(0.5, gt=0, description="Longest wait, in seconds, to fill an insert.")


class Registry(Section):
    """The embedded schema registry service."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8081, description="Port to listen on.")
    write_timeout_s: float = Field(
        8.0, gt=0, description="Seconds after which a write that Kafka does not take is answered with an error."
    )


class Broker(Section):
    """The embedded Kafka broker."""

    host: str = Field("127.0.0.1", description="Address to listen on and to advertise.")
    port: int = Field(9092, description="Port of the clients' listener.")
    controller_port: int = Field(9093, description="Port of the KRaft controller's listener.")
    heap_mb: int = Field(256, ge=128, description="Java heap in MB.")
    home: Path | None = Field(
        None,
        description="Folder of Kafka's jars, shared by all data folders; default: the user's cache folder.",
    )


class Provider(Section):
    """One model provider behind the gateway, as an entry of `gateway.providers`."""

    name: str = Field(min_length=1, description="Name in messages and metrics.")
    base_url: str = Field(min_length=1, description="Address before the paths of its API, as https://api.openai.com.")
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


class Gateway(Section):
    """The OpenAI-compatible gateway."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, description="Port to listen on.")
    upstreams: list[str] = Field(
        ["http://127.0.0.1:8000"],
        min_length=1,
        description="Base addresses of inference workers; comma-separated in the environment.",
    )
    providers: list[Provider] = Field(
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
        description="Most bytes of conversations kept for `previous_response_id`, for upstreams that keep none.",
    )
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


class Otlp(Section):
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


class Sdk(Section):
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


class Inference(Section):
    """An inference worker."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, description="Port to listen on.")
    worker_id: str = Field("worker-0", description="Name on the worker-status topic.")
    engine: Literal["torch", "vllm"] = Field("torch", description="Engine that generates.")
    model: str = Field("demo", description="Name of the model to serve, as on the checkpoints topic.")
    tool_parser: str = Field(
        "call_line", description="How the model writes tool calls: call_line, call_json, or none for plain text."
    )
    max_batch: int = Field(128, ge=1, description="Sequences decoded together (torch engine).")
    max_model_len: int = Field(512, ge=16, description="Longest context in tokens.")
    threads: int = Field(1, ge=1, description="CPU threads of the engine.")
    status_every_s: float = Field(2.0, gt=0, description="Seconds between status events without a change.")
    vllm_port: int = Field(0, ge=0, description="Port of the vLLM server behind this worker; 0: a free one.")
    vllm_args: list[str] = Field([], description="More arguments for vLLM's server.")


class Learner(Section):
    """The off-policy learner."""

    model: str = Field("demo", description="Name of the model to train, as on the checkpoints topic.")
    checkpoints: str = Field("", description="Folder for checkpoints; default: DATA/checkpoints.")
    groups_per_update: int = Field(16, ge=1, description="Groups consumed by one update.")
    group_size: int = Field(8, ge=2, description="Attempts in one group.")
    group_wait_s: float = Field(30.0, gt=0, description="Seconds after which an incomplete group is given up.")
    updates_per_checkpoint: int = Field(2, ge=1, description="Updates between two published versions.")
    staleness_bound: int = Field(4, ge=0, description="Largest staleness, in versions, of a trajectory trained on.")
    reuse: int = Field(1, ge=1, description="Most updates of one lineage that may train on a group.")
    sampling: Literal["freshest", "weighted"] = Field(
        "freshest",
        description="Which ready groups an update takes: the least stale, or drawn with the weight exp(-lag/τ).",
    )
    sampling_temperature: float = Field(1.0, gt=0, description="τ of weighted sampling, in versions.")
    tenant_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Largest share of an update's groups that may be one tenant's (one group may always be); below 1 "
        "an update waits until there are groups of enough tenants.",
    )
    near_duplicate_cap: int = Field(
        0, ge=0, description="Most groups of an update that are nearly alike, by their labels' MinHash; 0: any number."
    )
    near_duplicate_similarity: float = Field(
        0.9, gt=0, le=1, description="Jaccard similarity of two groups' texts from which they are nearly alike."
    )
    advantage: Literal[
        "rloo",
        "grpo",
        "dr_grpo",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "step_gae",
        "gigpo",
        "hgpo",
        "stratified",
        "salt",
        "tree_grpo",
        "shadow",
        "ppo_gae",
        "step_ppo",
        "vtrace",
        "hcapo",
    ] = Field("dr_grpo", description="Advantage rule, as docs/credit.md has them.")
    credit_discount: float = Field(
        0.95,
        ge=0,
        le=1,
        description="Discount γ from step to step, of step_gae, gigpo, hgpo, shadow, step_ppo, vtrace and hcapo.",
    )
    credit_trace: float = Field(
        0.95,
        ge=0,
        le=1,
        description="λ of step_gae, shadow and step_ppo, from step to step; of ppo_gae from token to token.",
    )
    credit_step_weight: float = Field(
        1.0, ge=0, description="Weight ω of what gigpo and hcapo say of a step, beside the outcome's."
    )
    credit_history: int = Field(2, ge=0, description="Most earlier observations K that hgpo's groups have in common.")
    credit_blend: float = Field(
        0.8, ge=0, le=1, description="Share α of the own stratum in stratified; the rest compares the whole group."
    )
    critic_rate: float = Field(
        0.2,
        gt=0,
        description="AdamW's step size for the critic of ppo_gae, step_ppo and vtrace: about the most by which one of "
        "its steps moves a value, in reward.",
    )
    critic_clip: float = Field(
        0.0, ge=0, description="By how much, in reward, an update may usefully move a value, as PPO clips; 0: no bound."
    )
    learning_rate: float = Field(3e-4, gt=0, description="AdamW's step size.")
    warmup_updates: int = Field(5, ge=0, description="Updates over which the rate rises from 0.")
    decay_updates: int = Field(0, ge=0, description="Updates over which the rate falls to a tenth; 0: constant.")
    minibatches: int = Field(2, ge=1, description="Gradient steps of one update.")
    microbatch_tokens: int = Field(
        4096, ge=1, description="Most tokens of one forward pass, a shared beginning counted once; bounds memory."
    )
    loss_length: int = Field(
        64, ge=1, description="Trained tokens by which dr_grpo divides a sequence's loss, however long it is."
    )
    clip_low: float = Field(0.2, gt=0, description="The current policy's ratio is clipped below at 1 - this.")
    clip_high: float = Field(0.28, gt=0, description="The current policy's ratio is clipped above at 1 + this.")
    importance_cap: float = Field(2.0, gt=0, description="Cap C of the truncated importance weight.")
    dual_clip: float = Field(3.0, gt=1, description="Bound c of the dual clip for negative advantages.")
    loss_ratio: Literal["token", "sequence", "step"] = Field(
        "token", description="What shares one ratio: each token, a sequence (GSPO) or a step."
    )
    loss_proximal: Literal["forward", "behaviour", "interpolated"] = Field(
        "forward",
        description="Proximal policy: a forward pass before the update, the behaviour policy (not decoupled), or a "
        "guess between behaviour and current by their versions.",
    )
    loss_weight: Literal["tis", "icepop", "kpop", "m2po", "none"] = Field(
        "tis", description="Importance weight of stale tokens, as docs/losses.md has them."
    )
    loss_weight_level: Literal["token", "sequence", "step"] = Field(
        "token", description="What shares one importance weight, as the geometric mean of its tokens' weights."
    )
    loss_clip: Literal["ppo", "cispo", "sapo", "m2po"] = Field(
        "ppo", description="What bounds a token's gain, as docs/losses.md has them."
    )
    loss_masks: list[Literal["opsm", "veto"]] = Field(
        [], description="Which sequences are left out: gone off-policy (opsm), unlikely token (veto); comma-separated."
    )
    weight_low: float = Field(0.5, gt=0, description="icepop rejects weights below this; at most 1.")
    weight_high: float = Field(5.0, ge=1, description="icepop rejects weights above this.")
    kpop_bound: float = Field(2.0, gt=0, description="kpop rejects tokens of which the policies differ by more nats.")
    m2po_budget: float = Field(0.04, gt=0, description="Mean of squared log-ratios that m2po allows, in nats².")
    cispo_cap: float = Field(5.0, gt=0, description="Cap of the ratio that weighs a token under cispo.")
    sapo_positive: float = Field(1.0, gt=0, description="Sharpness of sapo's gate for positive advantages.")
    sapo_negative: float = Field(1.05, gt=0, description="Sharpness of sapo's gate for the others.")
    opsm_bound: float = Field(0.5, gt=0, description="opsm: nats a token by which the policy may have moved away.")
    veto_floor: float = Field(1e-4, gt=0, lt=1, description="veto: smallest importance weight in a sequence.")
    objective: Literal["policy_gradient", "dpo", "kto", "sft"] = Field(
        "policy_gradient",
        description="What is learned from groups: advantages times ratios; which attempt was better (dpo); which were "
        "good (kto); or to imitate those that succeeded (sft). The settings `loss_…` and `advantage` are "
        "policy_gradient's.",
    )
    preference_beta: float = Field(0.1, gt=0, description="β of dpo and kto: how dear distance from the root is.")
    preference_margin: float = Field(
        0.0, ge=0, description="dpo: two attempts of a group are a pair if their rewards differ by more than this."
    )
    preference_good: float = Field(1.0, gt=0, description="kto: weight λ_D of attempts that succeeded.")
    preference_bad: float = Field(1.0, gt=0, description="kto: weight λ_U of the others.")
    kl_weight: float = Field(
        0.0,
        ge=0,
        description="Weight β of KL(θ‖root of the lineage) in the objective, in reward a nat; above 0 a frozen copy of "
        "the root is kept in memory, unless there are adapters.",
    )
    entropy_bonus: float = Field(0.0, ge=0, description="Weight of the policy's entropy in the objective, per nat.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to this norm.")
    lora_rank: int = Field(0, ge=0, description="Rank of the adapters that are trained; 0: all weights are trained.")
    lora_alpha: float = Field(16.0, gt=0, description="Adapters count this times, divided by their rank.")
    lora_targets: list[str] = Field(
        [], description="Names of the layers with adapters, as q_proj; default: every linear layer; comma-separated."
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="Where the model is trained; only on the CPU does the same log give the same bits."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Precision of the forward pass; weights, their optimizer and log-softmax stay in float32.",
    )
    activation_checkpointing: bool = Field(
        False, description="Keep each layer's input only and compute the rest again: less memory, a third more work."
    )
    compile: bool = Field(
        False,
        description="Compile the model's layers when they are first used: minutes on a CPU; needs a C++ compiler.",
    )
    threads: int = Field(1, ge=1, description="CPU threads of the learner.")
    seed: int = Field(0, description="Seed of everything random in the learner.")

    @model_validator(mode="after")
    def _objective_makes_sense(self) -> Self:
        if contradictions := loss_contradictions(self):
            raise ValueError("; ".join(contradictions))
        return self


class Fleet(Section):
    """The fleet of agents."""

    gateway_url: str = Field("http://127.0.0.1:8080", description="Base address of the gateway.")
    environment: str = Field(
        "stepstream.services.fleet.lookup:Lookup", description="Environment class, as module:name."
    )
    agent: str = Field("lookup-agent", description="Agent name in the events.")
    model: str = Field("demo", description="Model that the agents call.")
    concurrency: int = Field(64, ge=1, description="Trajectories in flight at once.")
    group_size: int = Field(8, ge=1, description="Attempts at each training task.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature.")
    max_tokens: int = Field(24, ge=1, description="Most tokens of one response.")
    seed: int = Field(0, description="Seed from which tasks are drawn.")
    max_trajectories: int = Field(0, ge=0, description="Stop after this many trajectories; 0: go on until told.")
    max_ahead: int = Field(
        1,
        ge=-1,
        description="Versions of work that may be under way beyond the one that the learner collects; 0: agents wait "
        "while it trains (synchronous); -1: no limit.",
    )
    gateway_deadline_s: float = Field(
        60.0, gt=0, description="Seconds for which an unreachable gateway is tried again before an attempt is given up."
    )
    shutdown_s: float = Field(
        2.0, ge=0, description="Seconds to finish trajectories when told to stop; the others are abandoned."
    )
    ledger: Path | None = Field(
        None, description="File in which the agents say what they sent; default: DATA/fleet/ledger.jsonl."
    )


class Console(Section):
    """The console."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8088, description="Port to listen on.")


class Stack(Section):
    """The embedded stack: all processes on one machine under one supervisor."""

    workers: int = Field(1, ge=0, description="Inference workers; ports count up from inference.port.")
    metrics_port_base: int = Field(
        9401, ge=1, le=65535, description="First of the metrics ports; each process gets the next one."
    )
    external: list[Literal["broker", "registry", "store"]] = Field(
        [],
        description="Parts that run elsewhere although their address is the embedded one; comma-separated.",
    )
    more: list[Literal["curate", "judge", "verify"]] = Field(
        [], description="Jobs that run only where they are asked for; comma-separated."
    )
    start_deadline_s: float = Field(120.0, gt=0, description="Seconds within which everything must be ready.")
    base_model: str = Field(
        "",
        description="Folder of the model to publish when there is none, or module:name of a function that makes it; "
        "empty: workers wait for `stepstream models publish`.",
    )
    new_lineage: bool = Field(
        False, description="Publish the base model again, as the root of a new lineage, although versions exist."
    )


class Demo(Section):
    """When a run of the loop has shown what it should, and what its base model is made of."""

    target: float = Field(0.85, gt=0, lt=1, description="Held-out success at which the loop has done its work.")
    margin: float = Field(0.03, ge=0, description="How far training success must pass the target before it is tested.")
    held_out: int = Field(256, ge=200, description="Held-out tasks of each evaluation.")
    deadline_s: float = Field(240.0, gt=0, description="Seconds that the loop may take to reach the target.")
    window: int = Field(512, ge=1, description="Newest training trajectories whose success is watched.")
    drain_s: float = Field(60.0, gt=0, description="Seconds allowed for everything sent to arrive in the tables.")


class Settings(Section):
    """Everything, by section."""

    paths: Paths = Paths()
    kafka: Kafka = Kafka()
    schema_registry: SchemaRegistry = SchemaRegistry()
    clickhouse: ClickHouse = ClickHouse()
    metrics: Metrics = Metrics()
    jobs: Jobs = Jobs()
    govern: Govern = Govern()
    inspect: Inspect = Inspect()
    seal: Seal = Seal()
    label: Label = Label()
    curate: Curate = Curate()
    alarms: Alarms = Alarms()
    judge: Judge = Judge()
    verify: Verify = Verify()
    store: Store = Store()
    registry: Registry = Registry()
    broker: Broker = Broker()
    gateway: Gateway = Gateway()
    otlp: Otlp = Otlp()
    sdk: Sdk = Sdk()
    inference: Inference = Inference()
    learner: Learner = Learner()
    fleet: Fleet = Fleet()
    console: Console = Console()
    demo: Demo = Demo()
    stack: Stack = Stack()
