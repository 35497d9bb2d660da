"""What a stateful job is made of: a fold for each partition of its inputs."""

from typing import Any, ClassVar, Protocol

from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes, PartitionState


class Fold(Protocol):
    """What a job does with the records of one partition. No Kafka and no clock: both are passed in."""

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Folds one event. Raises `Refused` where it cannot be used; anything else that it raises is a bug."""
        ...

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Ends a batch: emits what follows from all of it."""
        ...

    def due(self, now_ms: int) -> bool:
        """Whether `tick` has something to do at this time."""
        ...

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Takes decisions in time: as of `now_ms`, before which every record is folded."""
        ...

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Learns, while state is rebuilt, of an event that was published before."""
        ...


class FoldJob(Protocol):
    """A job made of folds."""

    name: ClassVar[str]
    version: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    remembers: ClassVar[str | None]
    """Output topic that `Fold.published` wants to see when state is rebuilt; None: it does not need to."""

    @property
    def max_event_bytes(self) -> int | None:
        """Largest record that is decoded at all; None: any that Kafka takes."""
        ...

    def fold(self, state: PartitionState) -> Fold:
        """The fold of one partition, over its store."""
        ...


class Partition:
    """One partition of a job that this worker holds."""

    def __init__(self, number: int, state: PartitionState, fold: Fold) -> None:
        self.number = number
        self.state = state
        self.fold = fold
        self.joined: set[str] = set()
        """Inputs of which a record was delivered since the partition was assigned."""
        self.horizon: tuple[int, dict[str, int]] | None = None
        """A time at which something was to be decided, and where the inputs ended then."""
