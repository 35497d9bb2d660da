"""Undo by hand: what takes a decision back, and what is too late."""

from typing import Any

import pytest

from stepstream.services.control.undo import UndoRefused, undo_harness, undo_kind, undo_rollout, undo_training
from stepstream.topics.events import (
    Decision,
    Harness,
    new_checkpoint,
    new_decision,
    new_harness,
    new_rollout,
    new_training_control,
)
from stepstream.versions.rollouts import ModelVersions


def decision(action: str, lever: str = "weights", target: str = "2") -> Decision:
    return new_decision(
        event_id="d1", occurred_at_us=0, agent="shop", model="m", action=action, lever=lever, target=target
    )


def weights(**fields: Any) -> ModelVersions:
    versions = ModelVersions()
    for version in (1, 2):
        checkpoint = new_checkpoint(
            event_id=str(version),
            occurred_at_us=0,
            model="m",
            version=version,
            parent_version=version - 1 or None,
            uri="",
            weights_sha256="",
            code_version="",
        )
        versions.apply_checkpoint(version, checkpoint)
    versions.apply_rollout(new_rollout(event_id="r", occurred_at_us=0, model="m", **fields))
    return versions


def harness(version: str, state: Any, revision: int, reason: str = "") -> Harness:
    return new_harness(
        event_id=version,
        occurred_at_us=0,
        tenant="default",
        agent="shop",
        version=version,
        instructions=version,
        state=state,
        revision=revision,
        share=0.1,
        reason=reason,
    )


def test_a_canary_of_weights_ends_and_a_promotion_is_rolled_back() -> None:
    running = weights(stable_version=1, canary_version=2, canary_share=0.1)
    undone = undo_rollout(decision("canary"), running)
    assert (undone.stable, undone.canary) == (1, None)
    promoted = weights(stable_version=2, previous_stable_version=1)
    assert undo_rollout(decision("promote"), promoted).stable == 1
    for action, versions in (("canary", promoted), ("widen", promoted), ("promote", running)):
        with pytest.raises(UndoRefused, match="any more"):
            undo_rollout(decision(action), versions)


def test_a_harness_version_is_taken_back_by_name_or_by_its_decision() -> None:
    versions = {one["version"]: one for one in (harness("a", "stable", 1), harness("b", "canary", 2))}
    [taken] = undo_harness(decision("canary", "prompt", "b"), versions)
    assert (taken["version"], taken["state"]) == ("b", "retired")
    made = {"c": harness("c", "stable", 3, reason="decision d1: errors of search"), "a": versions["a"]}
    assert [one["version"] for one in undo_harness(decision("disable", "tools", "search"), made)] == ["c"]
    with pytest.raises(UndoRefused, match="does not serve"):
        undo_harness(decision("canary", "prompt", "z"), versions)


def test_a_proposal_is_refused_until_it_is_tried() -> None:
    versions = {"p": harness("p", "proposed", 1, reason="2 examples (decision d1)")}
    [refused] = undo_harness(decision("propose", "prompt", "shop"), versions)
    assert (refused["version"], refused["state"]) == ("p", "refused")
    tried = {"p": harness("p", "canary", 2, reason="2 examples (decision d1)")}
    with pytest.raises(UndoRefused, match="tried or refused already"):
        undo_harness(decision("propose", "prompt", "shop"), tried)


def test_learning_resumes_or_pauses_and_the_task_mix_returns() -> None:
    now = new_training_control(
        event_id="t", occurred_at_us=0, model="m", paused=True, task_weights={"a": 2.0}, decision_id="d1"
    )
    assert undo_training(decision("pause"), now)["paused"] is False
    assert undo_training(decision("train"), now)["paused"] is True
    assert undo_training(decision("resample", "task_mix"), now)["task_weights"] == {}
    with pytest.raises(UndoRefused, match="later record"):
        undo_training(decision("pause"), {**now, "decision_id": "d2"})


def test_an_undone_pause_excludes_its_reward_specifications_no_more() -> None:
    now = new_training_control(
        event_id="t",
        occurred_at_us=0,
        model="m",
        paused=True,
        excluded_reward_specs={"mine": "d1", "older": "d0"},
        decision_id="d1",
    )
    undone = undo_training(decision("pause"), now)
    assert (undone["paused"], undone["excluded_reward_specs"]) == (False, {"older": "d0"})
    # Learning was resumed and paused again since: the later record says whether it learns.
    later = undo_training(decision("pause"), {**now, "decision_id": "d2"})
    assert (later["paused"], later["excluded_reward_specs"]) == (True, {"older": "d0"})


@pytest.mark.parametrize(
    ("action", "lever", "kind"),
    [
        ("hold", "weights", ""),
        ("rollback", "weights", ""),
        ("rollback", "tools", "harness"),
        ("disable", "tools", "harness"),
        ("widen", "memory", "harness"),
        ("propose", "prompt", "harness"),
        ("promote", "weights", "rollout"),
        ("resample", "task_mix", "training"),
    ],
)
def test_the_topic_of_an_undo_follows_from_lever_and_action(action: str, lever: str, kind: str) -> None:
    assert undo_kind(decision(action, lever)) == kind
