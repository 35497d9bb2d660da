"""Derive a trajectory's status and its reason from rows of the tables. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stepstream.config import LabelSettings, LearnerSettings
from stepstream.learner.data.drop_reasons import REASONS, REMEDIES
from stepstream.learner.data.learning_signal import needs_group
from stepstream.learner.data.requirements import requirements_of

Row = Mapping[str, Any]

_HOLD = "held:"
"""Prefix of a label's flags that name the reasons of a hold."""

State = Literal["unknown", "withheld", "open", "not_trainable", "waiting", "trained", "dropped"]


@dataclass(frozen=True, slots=True)
class Facts:
    """Rows of the tables about one trajectory."""

    steps: Row
    """Summary of its governed steps: `count`, `first_at`, `last_at`, `ended`, `trainable`, `flags`, `group_id`."""
    feedback: Sequence[Row] = ()
    """Signals: `name`, `value`, `source`, `step_index`, `demonstrates`, `retracted`, `occurred_at`."""
    audit: Sequence[Row] = ()
    """Governance actions: `action`, `source_topic`, `records`, `finds` by rule."""
    label: Row | None = None
    """Newest label; None: not labelled."""
    components: Sequence[Row] = ()
    """Terms of its reward over all steps: `name`, `kind`, `source`, `value`, `weight`, `paid`, `final`."""
    curation: Sequence[Row] = ()
    """Decisions of people and jobs: `action`, `reason`, `by`, `occurred_at`."""
    group: Row = field(default_factory=lambda: {"labelled": 0, "open": 0})
    """Numbers of attempts of its group that are `labelled` and `open`."""
    decisions: Sequence[Row] = ()
    """Learners' decisions about it, by time."""
    newest_version: int | None = None
    """Newest version of the model that sampled it; None: no checkpoint of that model."""


@dataclass(frozen=True, slots=True)
class TrajectoryStatus:
    """Status of a trajectory and its reason."""

    state: State
    reason: str
    """A key of `REASONS`, or another code; empty: the state needs no reason."""
    why: str
    """The reason as a sentence."""
    would_change_it: str
    """Event or command that would change the status; empty: none is needed or possible."""


def status_of(facts: Facts, label: LabelSettings, learner: LearnerSettings) -> TrajectoryStatus:
    """Return the trajectory's status by its newest label and decision."""
    if not facts.steps["count"] and facts.label is None:
        return _unlabelled_without_steps(facts)
    if facts.label is None:
        return TrajectoryStatus(
            "open",
            "",
            "it is open: no step or feedback has reported its end, or a step before the end is missing",
            f"its last step, feedback that ends it, or {label.idle_timeout_s:g} s without a step "
            "(`label.idle_timeout_s`)",
        )
    if "erased" in facts.label["flags"]:
        return TrajectoryStatus("withheld", "erased", "its person was erased", "")
    trained = [row for row in facts.decisions if row["outcome"] == "trained"]
    if trained:
        return _trained(trained, facts)
    own = [row for row in facts.decisions if row["model"] == facts.label["model"]] or list(facts.decisions)
    newest = [row for row in own if row["revision"] == facts.label["revision"]]
    if newest:
        reason = newest[-1]["reason"]
        status = TrajectoryStatus("dropped", reason, _drop_sentence(newest[-1]), REMEDIES.get(reason, ""))
        return _hold_first(status, facts.label)
    is_demonstrated = any(row["demonstrates"] for row in facts.feedback)
    if reason := exclusion_reason(facts.label, learner, is_demonstrated=is_demonstrated):
        why = f"{REASONS[reason]} {_flags(facts.label)}"
        return _hold_first(TrajectoryStatus("not_trainable", reason, why, REMEDIES[reason]), facts.label)
    return _waiting(facts, learner)


def exclusion_reason(label: Row, learner: LearnerSettings, *, is_demonstrated: bool = False) -> str:
    """Return the key of `REASONS` for which a learner with these settings excludes a label; empty: trainable.

    It ignores which model sampled the trajectory.

    Args:
        label: the newest label.
        learner: the learner's settings.
        is_demonstrated: True if feedback demonstrates a response.
    """
    requirements = requirements_of(learner)
    if label["split"] != "train":
        return "split"
    replaces_group = is_demonstrated and requirements.demonstrations == "preferred"
    if not label["group_id"] and needs_group(learner) and not replaces_group:
        return "no_group"
    if label["consent"] != "train":
        return "consent"
    if label["fidelity"] != "token" and (requirements.sampled or label["fidelity"] != "text"):
        return "fidelity"
    if not label["trainable"]:
        return "no_outcome" if label["success"] is None or label["pending"] else "not_trainable"
    return ""


def _hold_first(status: TrajectoryStatus, label: Row) -> TrajectoryStatus:
    """Put a hold before the other reason, which remains after its release; return the status if there is no hold."""
    reasons = ", ".join(flag.removeprefix(_HOLD) for flag in label["flags"] if flag.startswith(_HOLD))
    if not reasons:
        return status
    held, release = f"it is held: {reasons}", "`stepstream quarantine release`"
    if (status.state, status.reason) == ("not_trainable", "not_trainable"):
        return replace(status, why=f"{held} {_flags(label)}", would_change_it=release)
    # `not_trainable` is the label's own mark, which the hold explains; its remedy is the release.
    then = "" if status.reason == "not_trainable" else status.would_change_it
    return replace(
        status,
        reason="not_trainable" if status.state == "not_trainable" else status.reason,
        why=f"{held}; besides, {status.why}",
        would_change_it="; then ".join(filter(None, (release, then))),
    )


def _flags(label: Row) -> str:
    return f"(flags: {', '.join(label['flags']) or 'none'})"


def _unlabelled_without_steps(facts: Facts) -> TrajectoryStatus:
    if any(row["action"] == "withheld" for row in facts.audit):
        return TrajectoryStatus(
            "withheld",
            "consent",
            "governance withheld its records: their effective consent is `none`",
            "`stepstream consent set`, for later records",
        )
    if facts.audit or facts.feedback:
        return TrajectoryStatus(
            "open",
            "",
            "governance has accepted feedback for it but no step",
            "its steps; look for them among the dead letters",
        )
    return TrajectoryStatus(
        "unknown",
        "",
        "no governed step, feedback or label has this id",
        "its steps, if the jobs have not processed them yet; check the id, the jobs' logs and the dead letters",
    )


def _trained(trained: Sequence[Row], facts: Facts) -> TrajectoryStatus:
    assert facts.label is not None
    uses = "; ".join(
        f"{row['model']}@{row['checkpoint_version']} in update {row['update']}{staleness_text(row)}" for row in trained
    )
    last = max(row["revision"] for row in trained)
    if last < facts.label["revision"]:
        return TrajectoryStatus(
            "trained",
            "trained_on_older_revision",
            f"trained on by {uses}, at revision {last}; the newest label is revision {facts.label['revision']}",
            REMEDIES["trained_on_older_revision"],
        )
    return TrajectoryStatus("trained", "", f"trained on by {uses}", "")


def _drop_sentence(decision: Row) -> str:
    words = REASONS.get(decision["reason"], decision["reason"])
    return (
        f"the learner of {decision['model']} dropped it at version {decision['learner_version']}"
        f"{staleness_text(decision)}, because {words}"
    )


def staleness_text(decision: Row) -> str:
    """Return the staleness at the decision as a clause; empty if no known policy sampled the trajectory."""
    return "" if decision["staleness"] is None else f", {decision['staleness']} versions stale"


def _waiting(facts: Facts, learner: LearnerSettings) -> TrajectoryStatus:
    assert facts.label is not None
    labelled, unlabelled = facts.group["labelled"], facts.group["open"]
    model = facts.label["model"] if facts.label["fidelity"] == "token" else learner.model
    group = "its group is complete" if facts.label["group_id"] else "it has no group"
    if facts.label["group_id"] and labelled < learner.group_size:
        timeout = "drops the group" if requirements_of(learner).whole_groups else "trains on the incomplete group"
        return TrajectoryStatus(
            "waiting",
            "",
            f"its group has {labelled} labelled attempts of {learner.group_size}, and {unlabelled} open",
            f"the other attempts; {learner.group_wait_s:g} s after reading the first attempt, the learner {timeout} "
            "(`learner.group_wait_s`)",
        )
    return TrajectoryStatus(
        "waiting",
        "",
        f"{group} and waits for an update of the learner of {model}",
        f"an update, which takes {learner.groups_per_update} groups (`learner.groups_per_update`); if the model's "
        "version does not rise, check that the learner runs",
    )
