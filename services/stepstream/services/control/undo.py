"""Undo a decision by hand, by the functions of `stepstream models rollback` and `stepstream harness rollback`. Pure.

Only what still serves can be undone: if a later version took its place, taking back would hit that version.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from stepstream.services.control.tool_changes import origins, take_back_stable
from stepstream.topics.events import Decision, Harness, TrainingControl
from stepstream.versions import harnesses, rollout_actions
from stepstream.versions.rollouts import ModelVersions

HARNESS_LEVERS = ("prompt", "skills", "memory", "tools")
_SERVES_NO_MORE = "its harness version does not serve the agent any more: see `stepstream harness list`"
UndoKind = Literal["", "rollout", "harness", "training"]


class UndoRefused(Exception):
    """The decision cannot be undone; the message has the reason and the remedy."""


def undo_kind(decision: Decision) -> UndoKind:
    """Return which topic takes the undo; empty: none, as for `hold` and for a rollback, which removed harm."""
    action, lever = decision["action"], decision["lever"]
    if action in {"train", "pause", "resample"}:
        return "training"
    if lever == "weights" and action in {"canary", "widen", "promote"}:
        return "rollout"
    if lever in HARNESS_LEVERS and action in {"propose", "canary", "widen", "promote"}:
        return "harness"
    if lever == "tools" and action in {"disable", "rollback"}:
        return "harness"
    return ""


def undo_rollout(decision: Decision, versions: ModelVersions) -> rollout_actions.Decision:
    """Return the rollout that takes back a canary or a promotion of weights.

    Raises:
        UndoRefused: the version does not serve the track any more.
        RolloutRefused: there is no version to return to.
    """
    model, served = decision["model"], versions.served
    version = int(decision["target"]) if decision["target"].isdigit() else None
    if decision["action"] in {"canary", "widen"}:
        if version is None or served.canary != version:
            raise UndoRefused(
                f"{model}@{decision['target']} is not the canary any more: see `stepstream models status`"
            )
        return rollout_actions.rollback(model, versions)
    if version is None or served.stable != version:
        raise UndoRefused(f"{model}@{decision['target']} is not stable any more: see `stepstream models status`")
    return rollout_actions.rollback(model, versions, served.previous_stable)


def undo_harness(decision: Decision, versions: Mapping[str, Harness]) -> list[Harness]:
    """Return the records that take back what the decision made or put out, or refuse its proposal, in order.

    The undo of a change of a tool also lets the canary go on as it was before the change.

    Raises:
        UndoRefused: the version does not serve any more, or is no proposal any more.
        HarnessRefused: it is pinned.
    """
    if decision["action"] == "propose":
        return [_refuse_proposal(decision, versions)]
    served = harnesses.served_harnesses(versions.values())
    if decision["lever"] == "tools":
        return _undo_tools(decision, versions, served)
    for one in (served.canary, served.stable):
        found = None if one is None else _made_by(decision, origins(versions, one["version"]))
        if one is not None and found is not None:
            is_stable = one is served.stable
            return take_back_stable(versions, found) if is_stable else [harnesses.take_back(versions, one["version"])]
    raise UndoRefused(_SERVES_NO_MORE)


def _made_by(decision: Decision, versions: Iterable[Harness]) -> str | None:
    """Return the first version that a decision made or put out; None: it did so with none."""
    return next(
        (
            one["version"]
            for one in versions
            if one["version"] == decision["target"] or decision["event_id"] in one["reason"]
        ),
        None,
    )


def _undo_tools(
    decision: Decision, versions: Mapping[str, Harness], served: harnesses.ServedHarnesses
) -> list[Harness]:
    stable, canary = served.stable, served.canary
    if stable is None or decision["event_id"] not in stable["reason"]:
        raise UndoRefused(_SERVES_NO_MORE)
    made = [harnesses.take_back(versions, stable["version"])]
    if canary is not None and decision["event_id"] in canary["reason"] and canary["parents"]:
        after = {**versions, stable["version"]: made[0]}
        after[canary["version"]] = harnesses.take_back(after, canary["version"])
        before = harnesses.start_canary(after, canary["parents"][0], canary["share"])
        made += [after[canary["version"]], before]
    return made


def _refuse_proposal(decision: Decision, versions: Mapping[str, Harness]) -> Harness:
    for one in versions.values():
        if one["state"] == "proposed" and decision["event_id"] in one["reason"]:
            return harnesses.refuse(versions, one["version"])
    raise UndoRefused("its proposal was tried or refused already: see `stepstream harness list`")


def undo_training(decision: Decision, now: TrainingControl) -> TrainingControl:
    """Return the record that pauses or resumes learning, or ends the weights of task families.

    Labels of the reward specifications that the decision excluded are trained on again; also after a later record,
    which otherwise stays in force.

    Raises:
        UndoRefused: the newest record is of another decision, and the decision excludes no reward specification.
    """
    excluded = now["excluded_reward_specs"]
    kept = {spec: origin for spec, origin in excluded.items() if origin != decision["event_id"]}
    if now["decision_id"] != decision["event_id"]:
        if kept == excluded:
            raise UndoRefused("a later record controls the training of the model")
        return {**now, "excluded_reward_specs": kept}
    if decision["action"] == "resample":
        return {**now, "task_weights": {}}
    return {**now, "paused": decision["action"] == "train", "excluded_reward_specs": kept}
