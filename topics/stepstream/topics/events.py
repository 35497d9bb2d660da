"""The events as Python types: generated from the Avro schemas by `stepstream schemas generate`; do not edit.

A record is a plain dict, as the Avro codec reads and writes it, so that no event is copied on its way; the types
below make it checked. The `new_…` functions fill in the schemas' defaults.
"""

from typing import Literal, TypedDict

Track = Literal["stable", "canary"]
"""Which version of a model or harness serves a trajectory, sticky for its whole life."""


class CheckpointFile(TypedDict):
    """One file of a checkpoint."""

    path: str
    """Path below the checkpoint's address."""
    sha256: str
    """SHA-256 of its bytes, hex."""
    size_bytes: int
    """Size in bytes."""


def new_checkpoint_file(
    *,
    path: str,
    sha256: str,
    size_bytes: int,
) -> CheckpointFile:
    """A CheckpointFile with the schema's defaults."""
    return {
        "path": path,
        "sha256": sha256,
        "size_bytes": size_bytes,
    }


class UpdateInput(TypedDict):
    """What one update of the learner trained on, in order."""

    update: int
    """Number of the update since the root of the lineage, from 1."""
    partitions: list[int]
    """Partition of each labelled trajectory trained on, in the order of training."""
    offsets: list[int]
    """Offset of each, in the same order."""


def new_update_input(
    *,
    update: int,
    partitions: list[int] | None = None,
    offsets: list[int] | None = None,
) -> UpdateInput:
    """A UpdateInput with the schema's defaults."""
    return {
        "update": update,
        "partitions": partitions if partitions is not None else [],
        "offsets": offsets if offsets is not None else [],
    }


class PartitionOffset(TypedDict):
    """A position of a topic."""

    partition: int
    """Partition."""
    offset: int
    """Offset of the next record to read."""


def new_partition_offset(
    *,
    partition: int,
    offset: int,
) -> PartitionOffset:
    """A PartitionOffset with the schema's defaults."""
    return {
        "partition": partition,
        "offset": offset,
    }


class Checkpoint(TypedDict):
    """A published version of a model, with what is needed to rebuild it from the log."""

    event_id: str
    """Identity of this event: a UUIDv7 from its producer; for a derived event a UUIDv5 of what it was derived from and of the job's name and version. The same id twice is the same event."""
    occurred_at_us: int
    """When it happened, in microseconds since the Unix epoch (UTC)."""
    model: str
    """Name of the model."""
    version: int
    """Number of the version, rising; the record's key is `model@version`."""
    parent_version: int | None
    """Version that it was trained from; null: the root of a lineage."""
    track: Track
    """Track that it is offered to."""
    uri: str
    """Address of its folder, as file:///… or any fsspec address."""
    weights_sha256: str
    """SHA-256 of model.safetensors, hex."""
    files: list[CheckpointFile]
    """Every file of the folder."""
    input_topic: str
    """Topic that it was trained on."""
    inputs: list[UpdateInput]
    """The exact records of each update since the parent."""
    resume_offsets: list[PartitionOffset]
    """Where a learner that continues from it starts to read."""
    updates: int
    """Updates since the root of the lineage."""
    configuration: str
    """The learner's configuration as JSON."""
    code_version: str
    """Version of the code that trained it."""
    metrics: dict[str, float]
    """Figures of its updates: loss, staleness, clip share, effective sample size."""


def new_checkpoint(
    *,
    event_id: str,
    occurred_at_us: int,
    model: str,
    version: int,
    uri: str,
    weights_sha256: str,
    code_version: str,
    parent_version: int | None = None,
    track: Track = "stable",
    files: list[CheckpointFile] | None = None,
    input_topic: str = "",
    inputs: list[UpdateInput] | None = None,
    resume_offsets: list[PartitionOffset] | None = None,
    updates: int = 0,
    configuration: str = "{}",
    metrics: dict[str, float] | None = None,
) -> Checkpoint:
    """A Checkpoint with the schema's defaults."""
    return {
        "event_id": event_id,
        "occurred_at_us": occurred_at_us,
        "model": model,
        "version": version,
        "parent_version": parent_version,
        "track": track,
        "uri": uri,
        "weights_sha256": weights_sha256,
        "files": files if files is not None else [],
        "input_topic": input_topic,
        "inputs": inputs if inputs is not None else [],
        "resume_offsets": resume_offsets if resume_offsets is not None else [],
        "updates": updates,
        "configuration": configuration,
        "code_version": code_version,
        "metrics": metrics if metrics is not None else {},
    }


Consent = Literal["train", "analyse", "none"]
"""What the person or tenant behind an event allows: learning from it, counting it only, or neither. A value that a reader does not know reads as `none`."""


class DeadLetter(TypedDict):
    """A record that could not be used, with where it came from and why."""

    event_id: str
    """Identity of this event: a UUIDv7 from its producer; for a derived event a UUIDv5 of what it was derived from and of the job's name and version. The same id twice is the same event."""
    occurred_at_us: int
    """When it happened, in microseconds since the Unix epoch (UTC)."""
    job: str
    """Job or service that refused it."""
    topic: str
    """Topic that it came from."""
    partition: int
    """Partition."""
    offset: int
    """Offset."""
    key: bytes | None
    """Its key."""
    value: bytes | None
    """Its value; cut where it was larger than a dead letter may be."""
    value_bytes: int
    """Its true size in bytes."""
    error: str
    """Class of the fault: `malformed`, `unknown_schema`, `oversized`, `wrong_key`, `invalid`."""
    reason: str
    """What was wrong, without the content."""


def new_dead_letter(
    *,
    event_id: str,
    occurred_at_us: int,
    job: str,
    topic: str,
    partition: int,
    offset: int,
    value_bytes: int,
    error: str,
    reason: str,
    key: bytes | None = None,
    value: bytes | None = None,
) -> DeadLetter:
    """A DeadLetter with the schema's defaults."""
    return {
        "event_id": event_id,
        "occurred_at_us": occurred_at_us,
        "job": job,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "key": key,
        "value": value,
        "value_bytes": value_bytes,
        "error": error,
        "reason": reason,
    }


TrajectoryEnd = Literal["open", "terminated", "truncated"]
"""How a trajectory ended: `terminated` by its task (answered, solved, failed), or `truncated` by a limit of steps, time or tokens. `open`: not told."""


class Governance(TypedDict):
    """What the `govern` job did to a record; present on governed topics only."""

    source_event_id: str
    """event_id of the record as its producer wrote it."""
    job: str
    """Name and version of the job, as `govern@1`."""
    redactions: dict[str, int]
    """Redactions made, by rule; never the redacted value."""
    trainable: bool
    """Whether its tokens may be trained on (consent given, no redaction in them, fidelity `token`)."""
    flags: list[str]
    """Reasons for which it is kept out of training, as `redacted:email`, `consent:analyse`."""


def new_governance(
    *,
    source_event_id: str,
    job: str,
    redactions: dict[str, int] | None = None,
    trainable: bool = False,
    flags: list[str] | None = None,
) -> Governance:
    """A Governance with the schema's defaults."""
    return {
        "source_event_id": source_event_id,
        "job": job,
        "redactions": redactions if redactions is not None else {},
        "trainable": trainable,
        "flags": flags if flags is not None else [],
    }


class Feedback(TypedDict):
    """A signal about a trajectory, a step or a tool call, from a user, a verifier, a judge, the environment or a business event; it may come days later."""

    event_id: str
    """Identity of this event: a UUIDv7 from its producer; for a derived event a UUIDv5 of what it was derived from and of the job's name and version. The same id twice is the same event."""
    occurred_at_us: int
    """When it happened, in microseconds since the Unix epoch (UTC)."""
    producer: str
    """Program that wrote the event."""
    tenant: str
    """Customer or organisation."""
    consent: Consent
    """What may be done with this feedback."""
    user: str | None
    """Person who gave it or whom it concerns."""
    trajectory_id: str
    """The trajectory; the key of the record."""
    step_index: int | None
    """Step that it is about; null: the whole trajectory."""
    tool_call_id: str | None
    """Tool call that it is about."""
    name: str
    """What was measured, as `outcome`, `thumbs`, `edit_distance`; reward specifications refer to it."""
    value: float | None
    """Number; a boolean is 0 or 1."""
    category: str | None
    """One of a set of words, where the signal is one."""
    comment: str | None
    """Free text."""
    demonstration: str | None
    """What the agent should have answered."""
    source: str
    """Where it comes from: `environment`, `verifier`, `test`, `user`, `judge`, `business`."""
    retracts: str | None
    """event_id of earlier feedback that this one takes back."""
    end: TrajectoryEnd
    """Whether it tells that the trajectory has ended."""
    last_step_index: int | None
    """With `end`: index of the last step, so that missing ones are waited for."""
    governed: Governance | None
    """Set by the `govern` job."""


def new_feedback(
    *,
    event_id: str,
    occurred_at_us: int,
    producer: str,
    consent: Consent,
    trajectory_id: str,
    name: str,
    source: str,
    tenant: str = "default",
    user: str | None = None,
    step_index: int | None = None,
    tool_call_id: str | None = None,
    value: float | None = None,
    category: str | None = None,
    comment: str | None = None,
    demonstration: str | None = None,
    retracts: str | None = None,
    end: TrajectoryEnd = "open",
    last_step_index: int | None = None,
    governed: Governance | None = None,
) -> Feedback:
    """A Feedback with the schema's defaults."""
    return {
        "event_id": event_id,
        "occurred_at_us": occurred_at_us,
        "producer": producer,
        "tenant": tenant,
        "consent": consent,
        "user": user,
        "trajectory_id": trajectory_id,
        "step_index": step_index,
        "tool_call_id": tool_call_id,
        "name": name,
        "value": value,
        "category": category,
        "comment": comment,
        "demonstration": demonstration,
        "source": source,
        "retracts": retracts,
        "end": end,
        "last_step_index": last_step_index,
        "governed": governed,
    }


Fidelity = Literal["token", "text", "span"]
"""How much of what the policy did was captured: `token` (ids and behaviour logprobs), `text`, or `span` (from OpenTelemetry). Only `token` may feed importance-weighted losses."""


class RewardComponent(TypedDict):
    """One named term of a reward, kept on its own so that the sum can be explained."""

    name: str
    """Name in the reward specification."""
    value: float
    """Value after its bounds, before its weight."""
    weight: float
    """Weight in the sum."""
    source: str
    """Where the value comes from."""
    feedback_event_id: str | None
    """Governed feedback that gave the value."""


def new_reward_component(
    *,
    name: str,
    value: float,
    weight: float,
    source: str,
    feedback_event_id: str | None = None,
) -> RewardComponent:
    """A RewardComponent with the schema's defaults."""
    return {
        "name": name,
        "value": value,
        "weight": weight,
        "source": source,
        "feedback_event_id": feedback_event_id,
    }


class LabeledStep(TypedDict):
    """One step of a labelled trajectory."""

    step_index: int
    """Position in the trajectory."""
    event_id: str
    """Governed step that it labels."""
    reward: float
    """Weighted sum of the components."""
    return_to_go: float
    """Discounted sum of the rewards from this step on."""
    components: list[RewardComponent]
    """Every term of the reward."""
    version_min: int | None
    """Oldest policy version in its response."""
    version_max: int | None
    """Newest policy version in its response."""
    response_tokens: int
    """Tokens of its response."""
    prompt_tokens: int
    """Tokens of its whole prompt, shared part included."""
    duration_ms: float | None
    """Time of the call, in milliseconds."""
    error: str | None
    """Class of the error if the call failed."""
    trainable: bool
    """Whether its response is in a training sequence."""


def new_labeled_step(
    *,
    step_index: int,
    event_id: str,
    reward: float,
    return_to_go: float,
    components: list[RewardComponent] | None = None,
    version_min: int | None = None,
    version_max: int | None = None,
    response_tokens: int = 0,
    prompt_tokens: int = 0,
    duration_ms: float | None = None,
    error: str | None = None,
    trainable: bool = False,
) -> LabeledStep:
    """A LabeledStep with the schema's defaults."""
    return {
        "step_index": step_index,
        "event_id": event_id,
        "reward": reward,
        "return_to_go": return_to_go,
        "components": components if components is not None else [],
        "version_min": version_min,
        "version_max": version_max,
        "response_tokens": response_tokens,
        "prompt_tokens": prompt_tokens,
        "duration_ms": duration_ms,
        "error": error,
        "trainable": trainable,
    }


class SequenceSpan(TypedDict):
    """A run of sampled tokens of one step inside a training sequence."""

    start: int
    """First token, counted from 0 in the sequence."""
    end: int
    """One past the last token."""
    step_index: int
    """Step whose response this is."""
    model: str
    """Behaviour policy's model."""
    version: int
    """Behaviour policy's version."""


def new_sequence_span(
    *,
    start: int,
    end: int,
    step_index: int,
    model: str,
    version: int,
) -> SequenceSpan:
    """A SequenceSpan with the schema's defaults."""
    return {
        "start": start,
        "end": end,
        "step_index": step_index,
        "model": model,
        "version": version,
    }


class TrainingSequence(TypedDict):
    """Tokens that one forward pass sees: as many steps as share one growing context. The loss mask is 1 inside the spans and 0 elsewhere."""

    token_ids: list[int]
    """All tokens, in order."""
    spans: list[SequenceSpan]
    """Sampled tokens that may be trained on, in order, without overlaps."""
    logprobs: list[float]
    """Behaviour log-probabilities of the tokens inside the spans, concatenated."""


def new_training_sequence(
    *,
    token_ids: list[int] | None = None,
    spans: list[SequenceSpan] | None = None,
    logprobs: list[float] | None = None,
) -> TrainingSequence:
    """A TrainingSequence with the schema's defaults."""
    return {
        "token_ids": token_ids if token_ids is not None else [],
        "spans": spans if spans is not None else [],
        "logprobs": logprobs if logprobs is not None else [],
    }


class ToolUse(TypedDict):
    """How often a trajectory used one tool."""

    name: str
    """Name of the tool."""
    calls: int
    """Calls."""
    errors: int
    """Calls that failed."""
    duration_ms: float
    """Sum of the known times, in milliseconds."""


def new_tool_use(
    *,
    name: str,
    calls: int,
    errors: int,
    duration_ms: float = 0.0,
) -> ToolUse:
    """A ToolUse with the schema's defaults."""
    return {
        "name": name,
        "calls": calls,
        "errors": errors,
        "duration_ms": duration_ms,
    }


class LabeledTrajectory(TypedDict):
    """A closed trajectory with its rewards, returns and training sequences. A later revision replaces the earlier one."""

    event_id: str
    """Identity of this event: a UUIDv7 from its producer; for a derived event a UUIDv5 of what it was derived from and of the job's name and version. The same id twice is the same event."""
    occurred_at_us: int
    """When it happened, in microseconds since the Unix epoch (UTC)."""
    trajectory_id: str
    """The trajectory; the key of the record."""
    revision: int
    """1, 2, … : higher is newer."""
    parent_trajectory_id: str | None
    """The trajectory that called this one."""
    parent_step_index: int | None
    """The step that called it."""
    task_id: str
    """What was attempted."""
    group_id: str | None
    """Attempts that are compared; the key of the record where it is set."""
    tenant: str
    """Customer or organisation."""
    consent: Consent
    """The strictest consent of its steps."""
    agent: str
    """Name of the agent."""
    environment: str
    """Where it worked."""
    harness_version: str
    """Harness of its first step."""
    track: Track
    """Its track."""
    split: str
    """`train` or `eval`."""
    model: str
    """Model of its first step."""
    version_min: int | None
    """Oldest policy version in its responses."""
    version_max: int | None
    """Newest policy version in its responses."""
    fidelity: Fidelity
    """The lowest fidelity of its steps."""
    end: TrajectoryEnd
    """How it ended; `open`: by timeout."""
    closed_by: str
    """`end` (told by a step or feedback), `idle` or `incomplete` (decided by timeout)."""
    complete: bool
    """Whether every step from 0 to the last is there."""
    success: bool | None
    """Whether the outcome component is at its upper bound; null: no outcome yet."""
    reward: float
    """Sum of the steps' rewards (trajectory-level terms are paid at the last step)."""
    reward_spec: str
    """Name and digest of the reward specification."""
    steps: list[LabeledStep]
    """Its steps, in order."""
    sequences: list[TrainingSequence]
    """Its training sequences; empty where nothing may be trained on."""
    tools: list[ToolUse]
    """Its use of tools."""
    flags: list[str]
    """Why it or parts of it are kept out of training."""
    trainable: bool
    """Whether a learner may use it."""
    prompt_tokens: int
    """Prompt tokens that were new, over all steps."""
    response_tokens: int
    """Response tokens over all steps."""
    started_at_us: int
    """Time of its first step, in microseconds since the Unix epoch."""
    ended_at_us: int
    """Time of its last step, in microseconds since the Unix epoch."""
    cost_usd: float | None
    """Sum of the known prices in US dollars."""
    labelled_by: str
    """Name and version of the job."""


def new_labeled_trajectory(
    *,
    event_id: str,
    occurred_at_us: int,
    trajectory_id: str,
    revision: int,
    consent: Consent,
    agent: str,
    model: str,
    fidelity: Fidelity,
    closed_by: str,
    complete: bool,
    reward: float,
    reward_spec: str,
    started_at_us: int,
    ended_at_us: int,
    labelled_by: str,
    parent_trajectory_id: str | None = None,
    parent_step_index: int | None = None,
    task_id: str = "",
    group_id: str | None = None,
    tenant: str = "default",
    environment: str = "",
    harness_version: str = "",
    track: Track = "stable",
    split: str = "train",
    version_min: int | None = None,
    version_max: int | None = None,
    end: TrajectoryEnd = "open",
    success: bool | None = None,
    steps: list[LabeledStep] | None = None,
    sequences: list[TrainingSequence] | None = None,
    tools: list[ToolUse] | None = None,
    flags: list[str] | None = None,
    trainable: bool = False,
    prompt_tokens: int = 0,
    response_tokens: int = 0,
    cost_usd: float | None = None,
) -> LabeledTrajectory:
    """A LabeledTrajectory with the schema's defaults."""
    return {
        "event_id": event_id,
        "occurred_at_us": occurred_at_us,
        "trajectory_id": trajectory_id,
        "revision": revision,
        "parent_trajectory_id": parent_trajectory_id,
        "parent_step_index": parent_step_index,
        "task_id": task_id,
        "group_id": group_id,
        "tenant": tenant,
        "consent": consent,
        "agent": agent,
        "environment": environment,
        "harness_version": harness_version,
        "track": track,
        "split": split,
        "model": model,
        "version_min": version_min,
        "version_max": version_max,
        "fidelity": fidelity,
        "end": end,
        "closed_by": closed_by,
        "complete": complete,
        "success": success,
        "reward": reward,
        "reward_spec": reward_spec,
        "steps": steps if steps is not None else [],
        "sequences": sequences if sequences is not None else [],
        "tools": tools if tools is not None else [],
        "flags": flags if flags is not None else [],
        "trainable": trainable,
        "prompt_tokens": prompt_tokens,
        "response_tokens": response_tokens,
        "started_at_us": started_at_us,
        "ended_at_us": ended_at_us,
        "cost_usd": cost_usd,
        "labelled_by": labelled_by,
    }


class ToolCall(TypedDict):
    """One call of a tool by the agent, with what came back where it is known."""

    call_id: str
    """Identity of the call inside its trajectory, as the model or the SDK named it."""
    name: str
    """Name of the tool."""
    arguments: str
    """Arguments as JSON text, exactly as the model wrote them."""
    result: str | None
    """What the tool answered; null where the record's producer did not see it."""
    error: str | None
    """Class of the error; null: none, or not known."""
    duration_ms: float | None
    """Time that the call took, in milliseconds."""


def new_tool_call(
    *,
    call_id: str,
    name: str,
    arguments: str,
    result: str | None = None,
    error: str | None = None,
    duration_ms: float | None = None,
) -> ToolCall:
    """A ToolCall with the schema's defaults."""
    return {
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "result": result,
        "error": error,
        "duration_ms": duration_ms,
    }


class Message(TypedDict):
    """One message of a conversation, in the form of OpenAI's chat API."""

    role: str
    """`system`, `user`, `assistant`, `tool`, or another role that the model's template knows."""
    content: str
    """Text; empty where the message only calls tools."""
    tool_calls: list[ToolCall]
    """Tools that an assistant's message calls."""
    tool_call_id: str | None
    """For a tool's message: the call that it answers."""
    name: str | None
    """Name of the speaker or tool, where given."""


def new_message(
    *,
    role: str,
    content: str = "",
    tool_calls: list[ToolCall] | None = None,
    tool_call_id: str | None = None,
    name: str | None = None,
) -> Message:
    """A Message with the schema's defaults."""
    return {
        "role": role,
        "content": content,
        "tool_calls": tool_calls if tool_calls is not None else [],
        "tool_call_id": tool_call_id,
        "name": name,
    }


class PolicySpan(TypedDict):
    """A run of response tokens sampled by one version of one model."""

    start: int
    """First token, counted from 0 in the response."""
    end: int
    """One past the last token."""
    model: str
    """Name of the behaviour policy's model."""
    version: int
    """Version of that model: the number of its checkpoint; 0 or more."""


def new_policy_span(
    *,
    start: int,
    end: int,
    model: str,
    version: int,
) -> PolicySpan:
    """A PolicySpan with the schema's defaults."""
    return {
        "start": start,
        "end": end,
        "model": model,
        "version": version,
    }


class Sampling(TypedDict):
    """How response tokens were drawn."""

    temperature: float
    """Softmax temperature, 0 (greedy) or more. Logprobs are those of the distribution sampled from."""
    top_p: float
    """Nucleus bound, in (0, 1]."""
    max_tokens: int | None
    """Most tokens of the response."""
    seed: int | None
    """Seed, where one was set."""


def new_sampling(
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int | None = None,
    seed: int | None = None,
) -> Sampling:
    """A Sampling with the schema's defaults."""
    return {
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": max_tokens,
        "seed": seed,
    }


StatsScope = Literal["trajectory", "cohort"]
"""What a statistics record describes: one trajectory, or all trajectories of one cohort (agent × policy version × harness version × tool) in one partition."""


class Step(TypedDict):
    """One complete interaction round of an agent: observation, the agent's whole response, how it was sampled. It stores only what is new: the part of the prompt that repeats the step before is named by its length and digest."""

    event_id: str
    """Identity of this event: a UUIDv7 from its producer; for a derived event a UUIDv5 of what it was derived from and of the job's name and version. The same id twice is the same event."""
    occurred_at_us: int
    """When it happened, in microseconds since the Unix epoch (UTC)."""
    producer: str
    """Program that wrote the event, as `gateway/0.1.0`."""
    tenant: str
    """Customer or organisation that the agent works for."""
    consent: Consent
    """What may be done with this step."""
    user: str | None
    """Person that the agent works for, for consent and erasure."""
    trajectory_id: str
    """The trajectory; the key of the record."""
    step_index: int
    """Position in the trajectory, from 0 without gaps."""
    parent_trajectory_id: str | None
    """For a sub-agent or hand-off: the trajectory that called it."""
    parent_step_index: int | None
    """The step of the parent that called it."""
    task_id: str
    """What was attempted."""
    group_id: str | None
    """Ties the attempts that group-relative baselines compare."""
    agent: str
    """Name of the agent."""
    environment: str
    """Where the agent works; names the reward specification."""
    harness_version: str
    """Version of everything around the weights: system prompt, tools, skills, memory."""
    track: Track
    """Which track serves this trajectory."""
    split: str
    """`train`, or `eval` for held-out tasks, which are measured and never trained on."""
    model: str
    """Model that the agent called."""
    fidelity: Fidelity
    """What was captured."""
    prompt_shared_messages: int
    """Leading messages of this prompt that are exactly the step before's prompt and response; 0 or more."""
    prompt_shared_tokens: int
    """Leading tokens of this prompt that are exactly the step before's prompt and response; 0 or more."""
    prompt_shared_digest: str | None
    """SHA-256 (hex) of the shared part: its token ids as little-endian int32; null where nothing is shared."""
    messages: list[Message]
    """Messages of the prompt after the shared ones."""
    prompt_token_ids: list[int]
    """Tokens of the prompt after the shared ones; empty below fidelity `token`."""
    response: Message
    """What the agent answered, whole."""
    response_token_ids: list[int]
    """Tokens of the response, with its end-of-turn token where it was sampled; empty below fidelity `token`."""
    response_logprobs: list[float]
    """Behaviour log-probability (natural logarithm, 0 or less) of each response token."""
    loss_mask: list[bool]
    """Whether each response token may be trained on; empty: all of them."""
    policy_spans: list[PolicySpan]
    """Which policy version produced which response tokens, in order, without gaps."""
    sampling: Sampling
    """How the response was drawn."""
    finish_reason: str
    """Why the response ended: `stop`, `length`, `tool_calls`, `error`."""
    end: TrajectoryEnd
    """Whether this step ends its trajectory."""
    error: str | None
    """Class of the error if the call failed."""
    duration_ms: float | None
    """Time of the whole call, in milliseconds."""
    first_token_ms: float | None
    """Time to the first token, in milliseconds."""
    cost_usd: float | None
    """Price of the call in US dollars."""
    governed: Governance | None
    """Set by the `govern` job."""


def new_step(
    *,
    event_id: str,
    occurred_at_us: int,
    producer: str,
    consent: Consent,
    trajectory_id: str,
    step_index: int,
    agent: str,
    model: str,
    fidelity: Fidelity,
    response: Message,
    sampling: Sampling,
    tenant: str = "default",
    user: str | None = None,
    parent_trajectory_id: str | None = None,
    parent_step_index: int | None = None,
    task_id: str = "",
    group_id: str | None = None,
    environment: str = "",
    harness_version: str = "",
    track: Track = "stable",
    split: str = "train",
    prompt_shared_messages: int = 0,
    prompt_shared_tokens: int = 0,
    prompt_shared_digest: str | None = None,
    messages: list[Message] | None = None,
    prompt_token_ids: list[int] | None = None,
    response_token_ids: list[int] | None = None,
    response_logprobs: list[float] | None = None,
    loss_mask: list[bool] | None = None,
    policy_spans: list[PolicySpan] | None = None,
    finish_reason: str = "",
    end: TrajectoryEnd = "open",
    error: str | None = None,
    duration_ms: float | None = None,
    first_token_ms: float | None = None,
    cost_usd: float | None = None,
    governed: Governance | None = None,
) -> Step:
    """A Step with the schema's defaults."""
    return {
        "event_id": event_id,
        "occurred_at_us": occurred_at_us,
        "producer": producer,
        "tenant": tenant,
        "consent": consent,
        "user": user,
        "trajectory_id": trajectory_id,
        "step_index": step_index,
        "parent_trajectory_id": parent_trajectory_id,
        "parent_step_index": parent_step_index,
        "task_id": task_id,
        "group_id": group_id,
        "agent": agent,
        "environment": environment,
        "harness_version": harness_version,
        "track": track,
        "split": split,
        "model": model,
        "fidelity": fidelity,
        "prompt_shared_messages": prompt_shared_messages,
        "prompt_shared_tokens": prompt_shared_tokens,
        "prompt_shared_digest": prompt_shared_digest,
        "messages": messages if messages is not None else [],
        "prompt_token_ids": prompt_token_ids if prompt_token_ids is not None else [],
        "response": response,
        "response_token_ids": response_token_ids if response_token_ids is not None else [],
        "response_logprobs": response_logprobs if response_logprobs is not None else [],
        "loss_mask": loss_mask if loss_mask is not None else [],
        "policy_spans": policy_spans if policy_spans is not None else [],
        "sampling": sampling,
        "finish_reason": finish_reason,
        "end": end,
        "error": error,
        "duration_ms": duration_ms,
        "first_token_ms": first_token_ms,
        "cost_usd": cost_usd,
        "governed": governed,
    }


class TrajectoryClosed(TypedDict):
    """The decision, made once and written to the log, that a trajectory is over although its end was not told or steps are missing."""

    event_id: str
    """Identity of this event: a UUIDv7 from its producer; for a derived event a UUIDv5 of what it was derived from and of the job's name and version. The same id twice is the same event."""
    occurred_at_us: int
    """When it happened, in microseconds since the Unix epoch (UTC)."""
    trajectory_id: str
    """The trajectory; the key of the record."""
    reason: str
    """`idle` (nothing came for the declared time) or `incomplete` (its end was told, steps are missing)."""
    last_step_index: int
    """Highest step index seen; -1: none."""
    job: str
    """Name and version of the job that decided."""


def new_trajectory_closed(
    *,
    event_id: str,
    occurred_at_us: int,
    trajectory_id: str,
    reason: str,
    last_step_index: int,
    job: str,
) -> TrajectoryClosed:
    """A TrajectoryClosed with the schema's defaults."""
    return {
        "event_id": event_id,
        "occurred_at_us": occurred_at_us,
        "trajectory_id": trajectory_id,
        "reason": reason,
        "last_step_index": last_step_index,
        "job": job,
    }


class TrajectoryStats(TypedDict):
    """Absolute statistics as of one position of the log: the newest version of a key replaces the earlier ones, sums over partitions give the whole."""

    event_id: str
    """Identity of this event: a UUIDv7 from its producer; for a derived event a UUIDv5 of what it was derived from and of the job's name and version. The same id twice is the same event."""
    occurred_at_us: int
    """When it happened, in microseconds since the Unix epoch (UTC)."""
    scope: StatsScope
    """What it describes."""
    key: str
    """Identity of the trajectory or cohort; the key of the record."""
    partition: int
    """Partition of labeled-trajectories that was folded."""
    version: int
    """Offset after the last record folded; higher is newer."""
    trajectory_id: str | None
    """Set for scope `trajectory`."""
    agent: str
    """Name of the agent."""
    model: str
    """Model."""
    policy_version: int | None
    """Newest policy version in the responses; null where the model tells none."""
    harness_version: str
    """Version of the harness."""
    split: str
    """`train` or `eval`."""
    tool: str
    """Tool; empty: all of the trajectory."""
    trajectories: int
    """Trajectories counted."""
    successes: int
    """Of those with a known outcome, the successful ones."""
    failures: int
    """Of those with a known outcome, the others."""
    truncated: int
    """Trajectories cut by a limit or by timeout."""
    steps: int
    """Steps."""
    errors: int
    """Steps whose call failed; for a tool: calls that failed."""
    tool_calls: int
    """Tool calls."""
    prompt_tokens: int
    """New prompt tokens."""
    response_tokens: int
    """Response tokens."""
    reward_sum: float
    """Sum of rewards."""
    duration_ms_sum: float
    """Sum of the known times, in milliseconds."""


def new_trajectory_stats(
    *,
    event_id: str,
    occurred_at_us: int,
    key: str,
    partition: int,
    version: int,
    agent: str,
    model: str,
    trajectories: int,
    successes: int,
    failures: int,
    truncated: int,
    steps: int,
    errors: int,
    tool_calls: int,
    prompt_tokens: int,
    response_tokens: int,
    reward_sum: float,
    duration_ms_sum: float,
    scope: StatsScope = "cohort",
    trajectory_id: str | None = None,
    policy_version: int | None = None,
    harness_version: str = "",
    split: str = "train",
    tool: str = "",
) -> TrajectoryStats:
    """A TrajectoryStats with the schema's defaults."""
    return {
        "event_id": event_id,
        "occurred_at_us": occurred_at_us,
        "scope": scope,
        "key": key,
        "partition": partition,
        "version": version,
        "trajectory_id": trajectory_id,
        "agent": agent,
        "model": model,
        "policy_version": policy_version,
        "harness_version": harness_version,
        "split": split,
        "tool": tool,
        "trajectories": trajectories,
        "successes": successes,
        "failures": failures,
        "truncated": truncated,
        "steps": steps,
        "errors": errors,
        "tool_calls": tool_calls,
        "prompt_tokens": prompt_tokens,
        "response_tokens": response_tokens,
        "reward_sum": reward_sum,
        "duration_ms_sum": duration_ms_sum,
    }


WorkerState = Literal["unknown", "starting", "loading", "serving", "refused", "stopping"]
"""What an inference worker is doing."""


class WorkerStatus(TypedDict):
    """What an inference worker serves."""

    event_id: str
    """Identity of this event: a UUIDv7 from its producer; for a derived event a UUIDv5 of what it was derived from and of the job's name and version. The same id twice is the same event."""
    occurred_at_us: int
    """When it happened, in microseconds since the Unix epoch (UTC)."""
    worker_id: str
    """Name of the worker; the key of the record."""
    engine: str
    """`torch` or `vllm`."""
    url: str
    """Address that it listens on."""
    model: str
    """Model that it serves."""
    version: int | None
    """Version that it serves; null: none yet."""
    newest_version: int | None
    """Newest version that it has heard of."""
    state: WorkerState
    """What it is doing."""
    reason: str | None
    """Why a version was refused."""
    requests_in_flight: int
    """Requests being served."""


def new_worker_status(
    *,
    event_id: str,
    occurred_at_us: int,
    worker_id: str,
    engine: str,
    url: str,
    model: str,
    version: int | None = None,
    newest_version: int | None = None,
    state: WorkerState = "unknown",
    reason: str | None = None,
    requests_in_flight: int = 0,
) -> WorkerStatus:
    """A WorkerStatus with the schema's defaults."""
    return {
        "event_id": event_id,
        "occurred_at_us": occurred_at_us,
        "worker_id": worker_id,
        "engine": engine,
        "url": url,
        "model": model,
        "version": version,
        "newest_version": newest_version,
        "state": state,
        "reason": reason,
        "requests_in_flight": requests_in_flight,
    }
