"""The one catalogue of topics: code creates topics from it, and manifests, ACLs and docs are generated from it."""

from dataclasses import dataclass, field
from typing import Literal

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
SOON_GONE = {"segment.ms": "60000", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "60000"}
"""A compacted topic whose old records go within minutes after they were replaced or deleted."""
DAILY = {"segment.ms": str(DAY_MS)}
"""What is deleted before its time, as records of an erased person in the clear, is off the disk after a day."""


@dataclass(frozen=True)
class Topic:
    """One topic of the log."""

    name: str
    key: str
    schema: str
    doc: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    """Programs, commands (`replay`, `export`, `erase`), or in words; `people`: other commands of theirs."""
    partitions: int = 8
    cleanup: Literal["delete", "compact"] = "delete"
    retention_ms: int = -1
    max_message_bytes: int = 1_048_588
    config: dict[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> str:
        """How long records stay, in words."""
        if self.cleanup == "compact":
            return "newest of each key"
        return "for ever" if self.retention_ms < 0 else f"{self.retention_ms // DAY_MS} days"

    @property
    def subject(self) -> str:
        """Subject of the value's schema in the registry."""
        return f"{self.name}-value"

    def settings(self) -> dict[str, str]:
        """The topic's configuration, as Kafka's admin API takes it."""
        settings = {
            "cleanup.policy": self.cleanup,
            "max.message.bytes": str(self.max_message_bytes),
            **self.config,
        }
        if self.cleanup == "delete":
            settings["retention.ms"] = str(self.retention_ms)
        return settings


AGENTS = ("gateway", "SDK", "any Kafka client")

_ALL = (
    Topic(
        "steps",
        "trajectory_id",
        "Step",
        "What agents did, as they told it.",
        AGENTS,
        ("govern", "replay", "erase"),
        config=DAILY,
    ),
    Topic(
        "feedback",
        "trajectory_id",
        "Feedback",
        "Signals about it, as they came.",
        (*AGENTS, "judge", "verify"),
        ("govern", "replay", "erase"),
        config=DAILY,
    ),
    Topic(
        "governed-steps",
        "trajectory_id",
        "Step",
        "Steps that may be used.",
        ("govern", "replay"),
        ("label", "store", "inspect", "judge", "verify", "replay", "export", "erase"),
    ),
    Topic(
        "governed-feedback",
        "trajectory_id",
        "Feedback",
        "Feedback that may be used.",
        ("govern", "replay"),
        ("label", "store", "verify", "replay", "erase"),
    ),
    Topic(
        "closures",
        "trajectory_id",
        "TrajectoryClosed",
        "Decisions that a trajectory is over.",
        ("label",),
        ("label", "store", "verify"),
    ),
    Topic(
        "labeled-trajectories",
        "group_id, else trajectory_id",
        "LabeledTrajectory",
        "Closed trajectories with rewards, returns and training sequences.",
        ("label",),
        ("label", "measure", "learner", "store", "curate", "erase"),
        max_message_bytes=16 * 1_048_576,
    ),
    Topic(
        "trajectory-stats",
        "key of the statistics",
        "TrajectoryStats",
        "Absolute statistics of trajectories and cohorts.",
        ("measure",),
        ("store", "control plane"),
        cleanup="compact",
    ),
    Topic(
        "component-stats",
        "cohort, period and partition",
        "ComponentStats",
        "Absolute statistics of reward components, by policy version and hour.",
        ("measure",),
        ("watch", "store"),
        cleanup="compact",
    ),
    Topic(
        "alarms",
        "alarm_id",
        "Alarm",
        "Rewarded components that rose while a guard fell.",
        ("watch",),
        ("watch", "store", "control plane"),
        partitions=1,
        cleanup="compact",
    ),
    Topic(
        "checkpoints",
        "model@version",
        "Checkpoint",
        "Published versions of models.",
        ("learner",),
        ("inference", "learner", "store", "fleet", "SDK", "erase"),
        partitions=1,
        cleanup="compact",
    ),
    Topic(
        "training-decisions",
        "trajectory_id",
        "TrainingDecision",
        "What became of labelled trajectories at the learners.",
        ("learner",),
        ("store", "learner", "fleet"),
    ),
    Topic(
        "learner-updates",
        "model",
        "LearnerUpdate",
        "What the learners' updates were made from, and their figures.",
        ("learner",),
        ("store",),
        partitions=1,
    ),
    Topic(
        "worker-status",
        "worker_id",
        "WorkerStatus",
        "What inference workers serve.",
        ("inference",),
        ("store", "console"),
        partitions=1,
        cleanup="compact",
    ),
    Topic(
        "curation",
        "trajectory_id",
        "Curation",
        "Decisions to keep trajectories out of training, or to let them in again.",
        ("label", "curate", "inspect", "people"),
        ("label", "curate", "store"),
    ),
    Topic(
        "governance-audit",
        "trajectory_id",
        "AuditEntry",
        "What governance found and did, by rule and count.",
        ("govern", "inspect"),
        ("store",),
    ),
    Topic(
        "policies",
        "tenant",
        "Policy",
        "Governance policies of tenants.",
        ("people",),
        ("govern", "label", "curate", "inspect", "judge", "verify", "replay", "store"),
        partitions=1,
        cleanup="compact",
    ),
    Topic(
        "reward-specs",
        "name",
        "RewardSpecification",
        "Reward specifications of environments and agents.",
        ("people",),
        ("label", "store", "fleet"),
        partitions=1,
        cleanup="compact",
    ),
    Topic(
        "consents",
        "tenant, user and agent",
        "ConsentChange",
        "What tenants, users and agents allow.",
        ("people",),
        ("govern", "label", "inspect", "judge", "verify", "replay", "erase", "store"),
        partitions=1,
        cleanup="compact",
        # Names a person: what was withdrawn, or is erased, is to be gone from the disk soon.
        config=SOON_GONE | {"delete.retention.ms": str(HOUR_MS)},
    ),
    Topic(
        "subject-keys",
        "key_id",
        "SubjectKey",
        "Keys of sealed records; a tombstone destroys one.",
        ("gateway", "SDK", "jobs", "people"),
        ("every reader of sealed records",),
        partitions=1,
        cleanup="compact",
        # A destroyed key is to be gone from the disk soon, not when a segment is full.
        config=SOON_GONE | {"delete.retention.ms": str(DAY_MS)},
    ),
    Topic(
        "erasures",
        "subject",
        "Erasure",
        "Decisions to erase a person.",
        ("people",),
        ("every writer and reader of sealed records", "store"),
        partitions=1,
        cleanup="compact",
    ),
    Topic(
        "judge-calibrations",
        "digest of the judge",
        "JudgeCalibration",
        "How far judges agree with people.",
        ("people",),
        ("judge", "verify"),
        partitions=1,
        cleanup="compact",
    ),
    Topic(
        "api-keys",
        "key_id",
        "ApiKey",
        "Keys of the gateway's callers, as digests.",
        ("people",),
        ("gateway",),
        partitions=1,
        cleanup="compact",
    ),
    Topic(
        "open-traces",
        "trace_id",
        "TraceExport",
        "Parts of OpenTelemetry traces that wait for the rest.",
        ("gateway",),
        ("gateway", "erase"),
        retention_ms=2 * DAY_MS,
        max_message_bytes=16 * 1_048_576,
    ),
    Topic(
        "dead-letters",
        "key of the refused record",
        "DeadLetter",
        "Records that could not be used, and why.",
        ("govern", "label", "verify", "measure", "store", "learner", *AGENTS[:2]),
        ("store", "erase"),
        retention_ms=90 * DAY_MS,
        config=DAILY,
    ),
)

TOPICS = {topic.name: topic for topic in _ALL}
