"""Write and read the head of a trajectory: everything of constant size. Pure."""

from typing import Any

import orjson

from stepstream.jobs.labels.feedback_signal import add_missing_fields
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.runtime.index_set import IndexSet

_FORMAT = 2
"""Format of heads. Heads without a format have all entries; releases that write those refuse this one."""
_ENTRIES = ("steps", "feedback", "changed_steps", "changed_feedback", "removed_feedback", "indices")
"""Fields that are not saved in the head as they are."""


def pack_head(trajectory: TrajectoryState) -> bytes:
    """Return the head of a trajectory."""
    head = {name: value for name, value in vars(trajectory).items() if name not in _ENTRIES}
    return orjson.dumps(head | {"format": _FORMAT, "indices": trajectory.indices.ranges()})


def unpack_head(packed: bytes) -> TrajectoryState:
    """Read a head, also one of earlier releases, which holds all entries: they then count as changed.

    Raises:
        ValueError: a later release wrote it.
    """
    fields = orjson.loads(packed)
    match fields.pop("format", 1):
        case 1:
            return _unpack_first_format(fields)
        case 2:
            return TrajectoryState(**fields | {"indices": IndexSet(fields["indices"])})
        case later:
            raise ValueError(f"the state has format {later}, of a later release: run that one, or delete the state")


def _unpack_first_format(fields: dict[str, Any]) -> TrajectoryState:
    """Read the format of earlier releases: one record with all steps and feedback."""
    closure, early = fields.pop("closure", None), fields.pop("early", {})
    steps, feedback = fields.pop("steps"), fields.pop("feedback")
    trajectory = TrajectoryState(**fields)
    for index, known in steps.items():
        trajectory.steps[int(index)] = known + [[]] * (7 - len(known))  # the first releases lack tool calls
        trajectory.indices.add(int(index))
    for slot, (source, entry) in enumerate(sorted(feedback.items())):
        add_missing_fields(entry)
        position = {"early": early[source]} if source in early else {}
        trajectory.feedback[source] = entry | {"slot": slot} | position
    trajectory.feedback_slots = trajectory.feedback_count = len(feedback)
    trajectory.changed_steps, trajectory.changed_feedback = set(trajectory.steps), set(feedback)
    if closure is not None:  # it covers the steps that were known
        trajectory.closures = [[*closure, trajectory.highest_step, None]]
    trajectory.first += [""] * (bool(trajectory.first) and len(trajectory.first) < 5)  # the environment
    if trajectory.first and trajectory.owner is None:
        trajectory.owner = trajectory.first[1]
    return trajectory
