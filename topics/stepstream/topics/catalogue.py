"""Declare every topic: name, key, value schema, partitions, retention, writers, readers and personal fields.

`stepstream topics apply` creates topics from `TOPICS`. The Strimzi manifests, the ACLs and docs/protocol.md are
generated from it. Modules name topics by the constants of this module.
"""

from stepstream.topics.topic import DAY_MS, Topic

STEPS = "steps"
FEEDBACK = "feedback"
GOVERNED_STEPS = "governed-steps"
GOVERNED_FEEDBACK = "governed-feedback"
CLOSURES = "closures"
LABELED_TRAJECTORIES = "labeled-trajectories"
TRAJECTORY_STATS = "trajectory-stats"
COMPONENT_STATS = "component-stats"
ALARMS = "alarms"
CHECKPOINTS = "checkpoints"
TRAINING_DECISIONS = "training-decisions"
LEARNER_UPDATES = "learner-updates"
WORKER_STATUS = "worker-status"
ROLLOUTS = "rollouts"
HARNESSES = "harnesses"
DECISIONS = "decisions"
DECISION_ACTS = "decision-acts"
TRAINING_CONTROL = "training-control"
CONTROL_POLICIES = "control-policies"
APPROVALS = "approvals"
CURATION = "curation"
GOVERNANCE_AUDIT = "governance-audit"
POLICIES = "policies"
REWARD_SPECS = "reward-specs"
CONSENTS = "consents"
SUBJECT_KEYS = "subject-keys"
ERASURES = "erasures"
ERASURE_PROOFS = "erasure-proofs"
JUDGE_CALIBRATIONS = "judge-calibrations"
API_KEYS = "api-keys"
KEY_USAGE = "key-usage"
CONSOLE_USERS = "console-users"
CONSOLE_ACTIONS = "console-actions"
OPEN_TRACES = "open-traces"
DEAD_LETTERS = "dead-letters"

_HOUR_MS = 3_600_000


def _table(name: str, key: str, schema: str, doc: str, writers: tuple[str, ...], readers: tuple[str, ...]) -> Topic:
    """Return a compacted topic with one partition, which readers hold whole in memory."""
    return Topic(name, key, schema, doc, writers, readers, partitions=1, cleanup="compact")


# `erase` deletes records in the clear from the log. A daily segment bounds how long the disk keeps them after that.
_DAILY_SEGMENTS = {"segment.ms": str(DAY_MS)}
# Compaction removes replaced and deleted records from the disk within minutes.
_PROMPT_COMPACTION = {"segment.ms": "60000", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "60000"}

# The order is that of the sealed blob. Add fields at the end: older releases read a blob up to the fields they know.
_PERSONAL_IN_STEP = (
    "user",
    "messages",
    "prompt_shared_digest",
    "prompt_token_ids",
    "response",
    "response_token_ids",
    "response_logprobs",
    "loss_mask",
    "policy_spans",
    "error",
    "tool_definitions",
    "sampling_mask",
)
_PERSONAL_IN_FEEDBACK = ("user", "category", "comment", "demonstration")
_PERSONAL_IN_TRAJECTORY = ("user", "sequences", "signature", "conversations", "other_users")

_AGENTS = ("gateway", "SDK", "any Kafka client")
_SEALING = ("gateway", "SDK", "govern", "label", "judge", "verify", "console", "people")
_OPENING = (*_SEALING, "measure", "learner", "store", "curate", "inspect", "control plane")

_ALL = (
    Topic(
        STEPS,
        "trajectory_id",
        "Step",
        "Steps as producers sent them, before governance.",
        _AGENTS,
        ("govern", "replay", "erase"),
        personal=_PERSONAL_IN_STEP,
        config=_DAILY_SEGMENTS,
        retention_setting="steps_retention_s",
    ),
    Topic(
        FEEDBACK,
        "trajectory_id",
        "Feedback",
        "Feedback as producers sent it, before governance.",
        (*_AGENTS, "judge", "verify", "console"),
        ("govern", "replay", "erase"),
        personal=_PERSONAL_IN_FEEDBACK,
        config=_DAILY_SEGMENTS,
        retention_setting="steps_retention_s",
    ),
    Topic(
        GOVERNED_STEPS,
        "trajectory_id",
        "Step",
        "Steps that passed governance.",
        ("govern", "replay"),
        ("label", "store", "inspect", "judge", "verify", "control plane", "console", "replay", "export", "erase"),
        personal=_PERSONAL_IN_STEP,
        retention_setting="governed_retention_s",
    ),
    Topic(
        GOVERNED_FEEDBACK,
        "trajectory_id",
        "Feedback",
        "Feedback that passed governance.",
        ("govern", "replay"),
        ("label", "store", "verify", "replay", "erase"),
        personal=_PERSONAL_IN_FEEDBACK,
        retention_setting="governed_retention_s",
    ),
    Topic(
        CLOSURES,
        "trajectory_id",
        "TrajectoryClosed",
        "Decisions to close a trajectory by timeout, or to stop waiting for its reward components.",
        ("label",),
        ("label", "store", "verify"),
        retention_setting="governed_retention_s",
    ),
    Topic(
        LABELED_TRAJECTORIES,
        "group_id, else trajectory_id",
        "LabeledTrajectory",
        "Closed trajectories with rewards, returns and training sequences.",
        ("label",),
        ("label", "measure", "learner", "store", "curate", "erase"),
        personal=_PERSONAL_IN_TRAJECTORY,
        max_message_bytes=16 * 1_048_576,
        retention_setting="labels_retention_s",
    ),
    Topic(
        TRAJECTORY_STATS,
        "key of the statistics",
        "TrajectoryStats",
        "Absolute statistics of trajectories and cohorts.",
        ("measure",),
        ("store", "control plane"),
        cleanup="compact",
        copied=False,
    ),
    Topic(
        COMPONENT_STATS,
        "cohort, period and partition",
        "ComponentStats",
        "Absolute statistics of reward components, by policy version and hour.",
        ("measure",),
        ("watch", "store"),
        cleanup="compact",
        copied=False,
    ),
    _table(
        ALARMS,
        "alarm_id",
        "Alarm",
        "Alarms: a rewarded component rose while a guard fell, or engine and learner differ.",
        ("watch", "learner"),
        ("watch", "learner", "store", "control plane"),
    ),
    _table(
        CHECKPOINTS,
        "model@version",
        "Checkpoint",
        "Published versions of models.",
        ("learner",),
        ("inference", "learner", "store", "fleet", "control plane", "console", "SDK", "erase"),
    ),
    Topic(
        TRAINING_DECISIONS,
        "trajectory_id",
        "TrainingDecision",
        "Decisions of learners to train on a labelled trajectory or to drop it.",
        ("learner",),
        ("store", "learner", "fleet"),
    ),
    Topic(
        LEARNER_UPDATES,
        "model",
        "LearnerUpdate",
        "Inputs and figures of each update of a learner.",
        ("learner",),
        ("store",),
        partitions=1,
    ),
    Topic(
        WORKER_STATUS,
        "worker_id",
        "WorkerStatus",
        "State and served version of each inference worker.",
        ("inference",),
        ("store", "console", "gateway", "control plane", "people", "SDK"),
        partitions=1,
        # Ids may be new at each start, as those of pods. A worker that runs repeats its status.
        cleanup="compact,delete",
        retention_ms=7 * DAY_MS,
        copied=False,
        # A gateway reads the topic from its beginning. The clocks of workers differ: the broker's dates a status.
        config=_PROMPT_COMPACTION | {"message.timestamp.type": "LogAppendTime"},
    ),
    _table(
        ROLLOUTS,
        "model",
        "Rollout",
        "Decisions which versions of a model serve its tracks.",
        ("control plane", "console", "people"),
        ("inference", "gateway", "learner", "watch", "store", "control plane", "console", "people", "SDK"),
    ),
    _table(
        HARNESSES,
        "tenant, agent and version",
        "Harness",
        "Harness versions of agents, each with its state.",
        ("control plane", "console", "people"),
        ("gateway", "control plane", "console", "people"),
    ),
    Topic(
        DECISIONS,
        "tenant, agent and model",
        "Decision",
        "Decisions of the control plane, also to hold.",
        ("control plane",),
        ("control plane", "console", "people"),
        partitions=1,
    ),
    Topic(
        DECISION_ACTS,
        "tenant, agent and model",
        "DecisionAct",
        "Ends of decisions: done, rejected, expired or failed; begins of searches; or undone by a person.",
        ("control plane", "console", "people"),
        ("control plane", "console", "people"),
        partitions=1,
    ),
    _table(
        TRAINING_CONTROL,
        "tenant and model",
        "TrainingControl",
        "Decisions whether the learner of a model trains, and on which tasks.",
        ("control plane", "console", "people"),
        ("control plane", "learner", "fleet", "console", "people"),
    ),
    _table(
        CONTROL_POLICIES,
        "tenant and name",
        "ControlPolicy",
        "Control policies of tenants and agents.",
        ("console", "people"),
        ("control plane", "console", "people"),
    ),
    Topic(
        APPROVALS,
        "decision_id",
        "Approval",
        "Answers of people to decisions that need one, and the refused ones with the reason.",
        ("console", "control plane", "people"),
        ("control plane", "console", "people"),
        partitions=1,
    ),
    Topic(
        CURATION,
        "trajectory_id",
        "Curation",
        "Decisions to exclude trajectories from training, or to release them.",
        ("label", "curate", "inspect", "console", "people"),
        ("label", "curate", "store"),
    ),
    Topic(
        GOVERNANCE_AUDIT,
        "trajectory_id",
        "AuditEntry",
        "Actions of governance on each record, with counts by rule.",
        ("govern", "inspect"),
        ("store",),
    ),
    _table(
        POLICIES,
        "tenant",
        "Policy",
        "Governance policies of tenants.",
        ("people",),
        ("govern", "label", "curate", "inspect", "judge", "verify", "replay", "store"),
    ),
    _table(
        REWARD_SPECS,
        "name",
        "RewardSpecification",
        "Reward specifications of environments and agents.",
        ("people",),
        ("label", "store", "fleet", "control plane"),
    ),
    Topic(
        CONSENTS,
        "tenant, user and agent",
        "ConsentChange",
        "Consent of tenants, users and agents.",
        ("people",),
        ("govern", "label", "inspect", "judge", "verify", "replay", "erase", "store"),
        partitions=1,
        cleanup="compact",
        # The key names a person: withdrawn and erased records must leave the disk soon.
        config=_PROMPT_COMPACTION | {"delete.retention.ms": str(_HOUR_MS)},
    ),
    Topic(
        SUBJECT_KEYS,
        "key_id",
        "SubjectKey",
        "Keys of sealed records; a record without `wrapped_key` destroys one.",
        _SEALING,
        _OPENING,
        partitions=1,
        cleanup="compact",
        # A destroyed key must leave the disk soon, not when its segment is full.
        config=_PROMPT_COMPACTION | {"delete.retention.ms": str(DAY_MS)},
    ),
    _table(ERASURES, "subject", "Erasure", "Decisions to erase a person.", ("people",), _OPENING),
    _table(
        ERASURE_PROOFS,
        "request_id",
        "ErasureProof",
        "What erasures removed, and what they left.",
        ("people",),
        ("store", "people"),
    ),
    _table(
        JUDGE_CALIBRATIONS,
        "digest of the judge",
        "JudgeCalibration",
        "Measured agreement of judges with people.",
        ("people",),
        ("judge", "verify"),
    ),
    _table(API_KEYS, "key_id", "ApiKey", "API keys of the gateway's callers, as digests.", ("people",), ("gateway",)),
    _table(
        KEY_USAGE,
        "key_id and gateway",
        "KeyUsage",
        "What each gateway process has counted for each API key.",
        ("gateway",),
        ("gateway", "people"),
    ),
    _table(
        CONSOLE_USERS,
        "name",
        "ConsoleUser",
        "Users of the console, with digests of their passwords.",
        ("people",),
        ("console", "people"),
    ),
    Topic(
        CONSOLE_ACTIONS,
        "user",
        "ConsoleAction",
        "Actions of people in the console, with their results.",
        ("console",),
        ("console", "people"),
        partitions=1,
    ),
    Topic(
        OPEN_TRACES,
        "trace_id",
        "TraceExport",
        "Parts of OpenTelemetry traces that are not complete yet.",
        ("gateway",),
        ("gateway", "erase"),
        retention_ms=2 * DAY_MS,
        max_message_bytes=16 * 1_048_576,
    ),
    Topic(
        DEAD_LETTERS,
        "key of the rejected record",
        "DeadLetter",
        "Records that a job or service rejected, with the reason.",
        ("govern", "label", "verify", "measure", "store", "learner", "console", *_AGENTS[:2]),
        ("store", "console", "erase"),
        copied=False,
        retention_ms=90 * DAY_MS,
        config=_DAILY_SEGMENTS,
    ),
)

TOPICS = {topic.name: topic for topic in _ALL}
"""Every topic by its name."""

SEALED_TOPICS = frozenset(topic.name for topic in _ALL if topic.personal)
"""Topics whose records are sealed if they have a `user`."""
