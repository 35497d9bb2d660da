"""What the agents say they sent, against what the tables and the labelled topic hold: lost, duplicated, or neither."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """What one agent says of one trajectory."""

    trajectory_id: str
    steps: int
    ended: bool = True
    """Whether it told the trajectory's end, so that a label must exist; abandoned ones are closed by timeout, later."""
    unsure: bool = False
    """Whether one more step may have been recorded, whose answer the agent never saw."""


@dataclass(frozen=True, slots=True)
class Label:
    """One labelled trajectory as it stands on the topic."""

    trajectory_id: str
    revision: int
    event_id: str
    steps: int


@dataclass(frozen=True, slots=True)
class Account:
    """The comparison; everything is counted in steps and labels together."""

    steps_sent: int
    steps_stored: int
    trajectories_sent: int
    trajectories_labelled: int
    lost: int
    duplicated: int


def settle(sent: Iterable[Sent], stored: Mapping[str, tuple[int, int]], labels: Iterable[Label]) -> Account:
    """Compares the three records of the same run.

    Args:
        sent: the agents' ledger, one entry a trajectory.
        stored: by trajectory, (distinct step indexes, rows after folding) of the steps table.
        labels: every record of the labelled topic, redeliveries included.

    Returns:
        `lost` counts steps that were sent and are not stored, trajectories that were not labelled, and steps that
        their newest label misses. `duplicated` counts rows beyond one a step, steps beyond those sent, and
        revisions that exist under more than one event id (the same id twice is the same event).
    """
    events: dict[tuple[str, int], set[str]] = {}
    newest: dict[str, Label] = {}
    for label in labels:
        events.setdefault((label.trajectory_id, label.revision), set()).add(label.event_id)
        if label.trajectory_id not in newest or label.revision > newest[label.trajectory_id].revision:
            newest[label.trajectory_id] = label
    steps_sent = steps_stored = trajectories = labelled = lost = duplicated = 0
    for entry in sent:
        trajectories += 1
        steps_sent += entry.steps
        distinct, rows = stored.get(entry.trajectory_id, (0, 0))
        steps_stored += rows
        most = entry.steps + entry.unsure
        lost += max(0, entry.steps - distinct)
        duplicated += max(0, rows - distinct) + max(0, distinct - most)
        last = newest.get(entry.trajectory_id)
        if last is None:
            lost += entry.ended
            continue
        labelled += 1
        lost += max(0, entry.steps - last.steps)
        duplicated += max(0, last.steps - most)
        duplicated += sum(
            len(events.get((entry.trajectory_id, revision), {""})) - 1 for revision in range(1, last.revision + 1)
        )
    return Account(steps_sent, steps_stored, trajectories, labelled, lost, duplicated)
