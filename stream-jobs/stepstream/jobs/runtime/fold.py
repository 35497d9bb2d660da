"""Declare the parts of a stateful job: the job, its fold, and a partition that a worker holds."""

from typing import Any, ClassVar, Protocol

from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes, PartitionState


class Fold(Protocol):
    """The logic of a job for one partition. It uses neither Kafka nor a clock: both are passed in."""

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Fold one event.

        Raises:
            InvalidRecord: the event cannot be used; it becomes a dead letter. Any other exception is a bug.
        """
        ...

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Emit the results that depend on the whole batch."""
        ...

    def due(self, now_ms: int) -> bool:
        """Return True if `tick` has something to do at `now_ms`."""
        ...

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Take the decisions that depend on time. Every record before `now_ms` is folded.

        A kill may lose the changes after the outputs were published. Then `restore_published` gets the outputs of
        `restored_topic`, and the next tick must take the same decisions, with the same event ids, or none.

        If it raises, none of its results take effect, and it is called again later, on a new fold.
        """
        ...

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Take in an event that this job published earlier; called while state is rebuilt."""
        ...


class FoldJob(Protocol):
    """A job that runs one fold for each partition of its inputs."""

    name: ClassVar[str]
    version: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    restored_topic: ClassVar[str | None]
    """Output topic whose events go to `Fold.restore_published` while state is rebuilt; None: none."""

    @property
    def max_event_bytes(self) -> int | None:
        """Largest record that is decoded, in bytes; None: no limit beyond Kafka's."""
        ...

    def fold(self, state: PartitionState) -> Fold:
        """Build the fold of one partition over its state."""
        ...


class Partition:
    """One partition of a job that this worker holds."""

    def __init__(self, number: int, state: PartitionState, fold: Fold) -> None:
        self.number = number
        self.state = state
        self.fold = fold
        self.pending_tick: tuple[int, dict[str, int]] | None = None
        """Time of a tick that is due, in milliseconds, and the end offsets of the inputs at that time."""
        self.failed_ticks = 0
        """Ticks in a row at which the fold raised."""
        self.next_tick_s = 0.0
        """Monotonic time before which no tick runs, after a failed one."""
        self.rebuilt = False
        """True if much of the log was folded to open it."""
