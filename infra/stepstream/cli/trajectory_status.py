"""Where a trajectory stands on its way into a model, and why: rows of the tables in, words out. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stepstream.config import LabelSettings, LearnerSettings
from stepstream.learner.data.drop_reasons import REASONS, REMEDIES
from stepstream.learner.data.learning_signal import needs_group
from stepstream.learner.data.requirements import requirements_of

Row = Mapping[str, Any]

State = Literal["unknown", "withheld", "open", "not_trainable", "waiting", "trained", "dropped"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the tables hold about one trajectory."""

    steps: Row
    """Of its governed steps: `count`, `first_at`, `last_at`, `ended`, `flags`, `group_id`."""
    feedback: Sequence[Row] = ()
    """Its signals: `name`, `value`, `source`, `step_index`, `demonstrates`, `retracted`, `occurred_at`."""
    audit: Sequence[Row] = ()
    """What governance did: `action`, `source_topic`, `records`, `finds` by rule."""
    label: Row | None = None
    """Its newest label; None: it is not labelled."""
    components: Sequence[Row] = ()
    """Terms of its reward over all steps: `name`, `kind`, `source`, `value`, `weight`, `paid`, `final`."""
    curation: Sequence[Row] = ()
    """Decisions of people and jobs: `action`, `reason`, `by`, `occurred_at`."""
    group: Row = field(default_factory=lambda: {"labelled": 0, "open": 0})
    """Attempts of its group that are `labelled`, and that are `open`."""
    decisions: Sequence[Row] = ()
    """What learners decided about it, in order of time."""
    newest_version: int | None = None
    """Newest version of the model that sampled it."""


@dataclass(frozen=True, slots=True)
class TrajectoryStatus:
    """The answer."""

    state: State
    reason: str
    """Word for why, as of `fates.REASONS`; empty where the state says it all."""
    why: str
    """One sentence."""
    would_change_it: str
    """What would bring it further; empty: nothing has to."""


def standing_of(facts: Facts, label: LabelSettings, learner: LearnerSettings) -> TrajectoryStatus:
    """Where the trajectory is now, by the newest word about it."""
    if not facts.steps["count"] and facts.label is None:
        return _unlabelled_without_steps(facts)
    if facts.label is None:
        return TrajectoryStatus(
            "open",
            "",
            "it is not closed: its end was not told, or steps before its end are missing",
            f"its end, told by its last step or by feedback; or {label.idle_timeout_s:g} s without a step "
            "(`label.idle_timeout_s`)",
        )
    if "erased" in facts.label["flags"]:
        return TrajectoryStatus("withheld", "erased", "the person that it belongs to was erased", "")
    trained = [row for row in facts.decisions if row["outcome"] == "trained"]
    if trained:
        return _trained(trained, facts)
    about = [row for row in facts.decisions if row["model"] == facts.label["model"]] or list(facts.decisions)
    newest = [row for row in about if row["revision"] == facts.label["revision"]]
    if newest:
        reason = newest[-1]["reason"]
        return TrajectoryStatus("dropped", reason, _because(newest[-1]), REMEDIES.get(reason, ""))
    untrainable = bar_of(facts.label, learner, shown=any(row["demonstrates"] for row in facts.feedback))
    if untrainable:
        flags = ", ".join(facts.label["flags"]) or "none"
        return TrajectoryStatus(
            "not_trainable", untrainable, f"{REASONS[untrainable]} (flags: {flags})", REMEDIES[untrainable]
        )
    return _waiting(facts, learner)


def bar_of(label: Row, learner: LearnerSettings, *, shown: bool = False) -> str:
    """Why no learner with these settings may train on a label, as one of `REASONS`; empty where one may.

    Args:
        label: the newest label.
        learner: the settings; whether its model sampled it is not looked at.
        shown: whether feedback demonstrates a response.
    """
    needs = requirements_of(learner)
    if label["split"] != "train":
        return "split"
    if not label["group_id"] and needs_group(learner) and not (shown and needs.demonstrations == "preferred"):
        return "no_group"
    if label["consent"] != "train":
        return "consent"
    if label["fidelity"] != "token" and (needs.sampled or label["fidelity"] != "text"):
        return "fidelity"
    if not label["trainable"]:
        return "no_outcome" if label["success"] is None or label["pending"] else "not_trainable"
    return ""


def _unlabelled_without_steps(facts: Facts) -> TrajectoryStatus:
    if any(row["action"] == "withheld" for row in facts.audit):
        return TrajectoryStatus(
            "withheld",
            "consent",
            "governance withheld its records: the consent that holds for them is `none`",
            "`stepstream consent set`, for what comes from then on",
        )
    if facts.audit or facts.feedback:
        return TrajectoryStatus(
            "open", "", "only feedback of it was governed so far, and no step", "its steps; see the dead letters"
        )
    return TrajectoryStatus(
        "unknown",
        "",
        "no governed step, feedback or label has this id",
        "its steps, if they are still on their way; `stepstream doctor` tells of jobs that lag and of dead letters",
    )


def _trained(trained: Sequence[Row], facts: Facts) -> TrajectoryStatus:
    assert facts.label is not None
    uses = "; ".join(
        f"{row['model']}@{row['checkpoint_version']} in update {row['update']}{staleness_of(row)}" for row in trained
    )
    last = max(row["revision"] for row in trained)
    if last < facts.label["revision"]:
        return TrajectoryStatus(
            "trained",
            "trained_on_older_revision",
            f"it was trained on by {uses}; revision {last} was, and the label is at revision {facts.label['revision']}",
            REMEDIES["trained_on_older_revision"],
        )
    return TrajectoryStatus("trained", "", f"it was trained on by {uses}", "")


def _because(decision: Row) -> str:
    words = REASONS.get(decision["reason"], decision["reason"])
    stale = f"{staleness_of(decision)} then" if decision["staleness"] is not None else ""
    return (
        f"a learner of {decision['model']} dropped it at version {decision['learner_version']}{stale}, because {words}"
    )


def staleness_of(decision: Row) -> str:
    """How stale it was; nothing where no policy is known to have sampled it."""
    return "" if decision["staleness"] is None else f", {decision['staleness']} versions stale"


def _waiting(facts: Facts, learner: LearnerSettings) -> TrajectoryStatus:
    assert facts.label is not None
    labelled, still_open = facts.group["labelled"], facts.group["open"]
    model = facts.label["model"] if facts.label["fidelity"] == "token" else learner.model
    whose = "its group is whole and" if facts.label["group_id"] else "it has no group, and"
    if facts.label["group_id"] and labelled < learner.group_size:
        return TrajectoryStatus(
            "waiting",
            "",
            f"its group has {labelled} of {learner.group_size} labelled attempts, and {still_open} that are still open",
            f"the other attempts; {learner.group_wait_s:g} s after a learner read the first one it "
            f"{'gives the group up' if requirements_of(learner).whole_groups else 'takes the group as it is'} "
            "(`learner.group_wait_s`)",
        )
    return TrajectoryStatus(
        "waiting",
        "",
        f"{whose} waits for an update of the learner of {model}",
        f"an update: it takes `learner.groups_per_update` groups ({learner.groups_per_update}); if versions do not "
        "rise, see whether the learner runs",
    )
