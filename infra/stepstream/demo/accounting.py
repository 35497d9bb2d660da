"""Compare the agents' ledger with the tables and the labelled topic; count lost and duplicated records."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepstream.topics.label_precedence import label_precedence


@dataclass(frozen=True, slots=True)
class SentTrajectory:
    """One trajectory of the agents' ledger."""

    trajectory_id: str
    steps: int
    ended: bool = True
    """True if the agent reported the end, so that a label must exist. A timeout labels the others later."""
    unsure: bool = False
    """True if the tables may hold one more step, whose response never reached the agent."""


@dataclass(frozen=True, slots=True)
class Label:
    """One record of the labelled topic."""

    trajectory_id: str
    revision: int
    event_id: str
    steps: int


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Result of the comparison."""

    steps_sent: int
    steps_stored: int
    trajectories_sent: int
    trajectories_labelled: int
    lost: int
    """Steps and labels that are missing."""
    duplicated: int
    """Steps and labels in excess."""


def reconcile(
    sent: Iterable[SentTrajectory], stored: Mapping[str, tuple[int, int]], labels: Iterable[Label]
) -> Reconciliation:
    """Compare the ledger, the steps table and the labelled topic of one run.

    Args:
        sent: the agents' ledger, one entry for each trajectory.
        stored: by trajectory, (distinct step indexes, rows after deduplication) of the steps table.
        labels: every record of the labelled topic, including redeliveries.

    Returns:
        `lost` counts sent steps that are not stored, ended trajectories without a label, and steps that the newest
        label lacks. `duplicated` counts rows beyond one for each step, steps beyond those sent, and revisions under
        more than one event id. Two records with the same event id are one event.
    """
    event_ids: dict[tuple[str, int], set[str]] = {}
    newest: dict[str, Label] = {}
    for label in labels:
        event_ids.setdefault((label.trajectory_id, label.revision), set()).add(label.event_id)
        known = newest.setdefault(label.trajectory_id, label)
        if label_precedence(label.revision, label.event_id) > label_precedence(known.revision, known.event_id):
            newest[label.trajectory_id] = label
    steps_sent = steps_stored = trajectories = labelled = lost = duplicated = 0
    for entry in sent:
        trajectories += 1
        steps_sent += entry.steps
        distinct, rows = stored.get(entry.trajectory_id, (0, 0))
        steps_stored += rows
        max_steps = entry.steps + entry.unsure
        lost += max(0, entry.steps - distinct)
        duplicated += max(0, rows - distinct) + max(0, distinct - max_steps)
        last = newest.get(entry.trajectory_id)
        if last is None:
            lost += entry.ended
            continue
        labelled += 1
        lost += max(0, entry.steps - last.steps)
        duplicated += max(0, last.steps - max_steps)
        duplicated += sum(
            len(event_ids.get((entry.trajectory_id, revision), {""})) - 1 for revision in range(1, last.revision + 1)
        )
    return Reconciliation(steps_sent, steps_stored, trajectories, labelled, lost, duplicated)
