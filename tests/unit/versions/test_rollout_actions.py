"""Test the decisions about rollouts: what each changes, what it keeps, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.topics.events import new_checkpoint
from stepstream.versions import rollout_actions
from stepstream.versions.rollout_actions import Decision, RolloutRefused
from stepstream.versions.rollouts import ModelVersions, ServedVersions, is_taken_back, track_of

VERSIONS = 6
REMOVED = 2
ROOTS = (1, 4)


@pytest.fixture
def versions() -> ModelVersions:
    """Versions 1 to 6; 2 was removed; 1 and 4 are roots."""
    return published()


def published() -> ModelVersions:
    state = ModelVersions()
    for version in range(1, VERSIONS + 1):
        checkpoint = new_checkpoint(
            event_id=f"c{version}",
            occurred_at_us=version,
            model="m",
            version=version,
            parent_version=None if version in ROOTS else version - 1,
            uri="file:///v",
            weights_sha256="",
            code_version="1",
            removed_at_us=5 if version == REMOVED else None,
            removal_reason="older than the last 3" if version == REMOVED else "",
        )
        state.apply_checkpoint(version, checkpoint)
    return state


def apply(state: ModelVersions, decision: Decision) -> ServedVersions:
    state.apply_rollout(decision.event("m", event_id="r", occurred_at_us=1, reason="", author=""))
    return state.served


def test_a_promotion_fixes_stable_and_a_rollback_returns(versions: ModelVersions) -> None:
    served = apply(versions, rollout_actions.promote("m", versions, 3))
    assert (served.stable, served.previous_stable, served.follows_newest) == (3, 6, False)
    served = apply(versions, rollout_actions.promote("m", versions, 5))
    assert (served.stable, served.previous_stable) == (5, 3)
    served = apply(versions, rollout_actions.rollback("m", versions))
    assert (served.stable, served.previous_stable, served.follows_newest) == (3, None, False)


def test_a_shadow_is_a_canary_that_serves_no_trajectory(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.promote("m", versions, 5))
    served = apply(versions, rollout_actions.start_shadow("m", versions, 6))
    assert (served.stable, served.canary, served.canary_share) == (5, 6, 0.0)
    assert all(track_of("t", str(number), "m", served.canary_share) == "stable" for number in range(1000))
    assert apply(versions, rollout_actions.rollback("m", versions)).taken_back == {6}
    with pytest.raises(RolloutRefused):
        rollout_actions.start_shadow("m", versions, 5)


def test_the_same_promotion_twice_keeps_the_version_to_return_to(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.promote("m", versions, 3))
    apply(versions, rollout_actions.promote("m", versions, 5))
    assert apply(versions, rollout_actions.promote("m", versions, 5)).previous_stable == 3


def test_a_rollback_of_a_followed_version_returns_to_its_parent_and_stays(versions: ModelVersions) -> None:
    served = apply(versions, rollout_actions.rollback("m", versions))
    assert (served.stable, served.follows_newest) == (5, False)
    assert apply(versions, rollout_actions.rollback("m", versions)).stable == 4
    with pytest.raises(RolloutRefused, match=r"m@4 has no parent .* --to"):
        rollout_actions.rollback("m", versions)
    assert apply(versions, rollout_actions.rollback("m", versions, to=1)).stable == 1
    with pytest.raises(RolloutRefused, match="m@1 is the stable version already"):
        rollout_actions.rollback("m", versions, to=1)


def test_a_rollback_ends_a_canary_and_only_it(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.promote("m", versions, 3))
    served = apply(versions, rollout_actions.start_canary("m", versions, 5, 0.1))
    assert (served.stable, served.canary, served.canary_share) == (3, 5, 0.1)
    served = apply(versions, rollout_actions.rollback("m", versions))
    assert (served.stable, served.canary, served.canary_share, served.previous_stable) == (3, None, 0.0, 6)
    apply(versions, rollout_actions.start_canary("m", versions, 5, 0.1))
    served = apply(versions, rollout_actions.rollback("m", versions, to=1))
    assert (served.stable, served.canary) == (1, None)


def test_a_promoted_canary_ends_as_canary(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.promote("m", versions, 3))
    apply(versions, rollout_actions.start_canary("m", versions, 5, 0.1))
    assert rollout_actions.promote("m", versions, 4).canary == 5
    served = apply(versions, rollout_actions.promote("m", versions, 5))
    assert (served.stable, served.canary, served.canary_share) == (5, None, 0.0)


def test_following_releases_the_stable_version(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.promote("m", versions, 3))
    apply(versions, rollout_actions.start_canary("m", versions, 6, 0.1))
    served = apply(versions, rollout_actions.follow("m", versions))
    assert (served.stable, served.canary, served.previous_stable, served.follows_newest) == (6, None, None, True)


def test_pins_change_nothing_that_is_served(versions: ModelVersions) -> None:
    served = apply(versions, rollout_actions.pin("m", versions, 3))
    assert (served.stable, served.follows_newest, served.pinned) == (6, True, frozenset({3}))
    apply(versions, rollout_actions.pin("m", versions, 1))
    assert apply(versions, rollout_actions.unpin("m", versions, 3)).pinned == frozenset({1})
    with pytest.raises(RolloutRefused, match="m@3 is not pinned; pinned versions: 1"):
        rollout_actions.unpin("m", versions, 3)


def test_a_canary_can_be_stopped_once(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.start_canary("m", versions, 3, 1.0))
    assert apply(versions, rollout_actions.stop_canary("m", versions)).canary is None
    with pytest.raises(RolloutRefused, match="m has no canary"):
        rollout_actions.stop_canary("m", versions)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_outside_its_range_is_refused(versions: ModelVersions, share: float) -> None:
    with pytest.raises(RolloutRefused, match="not in"):
        rollout_actions.start_canary("m", versions, 3, share)


def test_the_followed_version_is_no_canary(versions: ModelVersions) -> None:
    with pytest.raises(RolloutRefused, match=r"m@6 is the stable version already; m follows its newest .* promote"):
        rollout_actions.start_canary("m", versions, 6, 0.1)


@pytest.mark.parametrize(
    "decide",
    [
        lambda state, version: rollout_actions.promote("m", state, version),
        lambda state, version: rollout_actions.rollback("m", state, to=version),
        lambda state, version: rollout_actions.start_canary("m", state, version, 0.5),
        lambda state, version: rollout_actions.pin("m", state, version),
    ],
)
def test_absent_versions_are_refused(versions: ModelVersions, decide: Callable[..., Any]) -> None:
    with pytest.raises(RolloutRefused, match="m@9 was never published; its newest version is 6"):
        decide(versions, 9)
    with pytest.raises(RolloutRefused, match=r"files of m@2 were removed \(older than the last 3\)"):
        decide(versions, REMOVED)
    with pytest.raises(RolloutRefused, match="no version of 'm' was published"):
        decide(ModelVersions(), 1)
    with pytest.raises(RolloutRefused, match="no version of 'm' was published"):
        rollout_actions.follow("m", ModelVersions())


ACTIONS: list[Callable[[ModelVersions, int], Decision]] = [
    lambda state, version: rollout_actions.promote("m", state, version),
    lambda state, _: rollout_actions.rollback("m", state),
    lambda state, version: rollout_actions.rollback("m", state, to=version),
    lambda state, version: rollout_actions.start_canary("m", state, version, 0.5),
    lambda state, _: rollout_actions.stop_canary("m", state),
    lambda state, version: rollout_actions.pin("m", state, version),
    lambda state, _: rollout_actions.follow("m", state),
]


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, VERSIONS + 1)), max_size=12))
def test_no_sequence_of_decisions_serves_an_absent_version(
    actions: list[tuple[Callable[[ModelVersions, int], Decision], int]],
) -> None:
    state = published()
    for action, version in actions:
        try:
            served = apply(state, action(state, version))
        except RolloutRefused:
            continue
        present = set(range(1, VERSIONS + 1)) - {REMOVED}
        assert served.stable in present
        assert served.canary is None or served.canary in present - {served.stable}
        assert (served.canary is None) == (served.canary_share == 0)
        assert served.pinned <= present


def test_what_a_rollback_ends_counts_as_taken_back_until_it_is_put_out_again(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.promote("m", versions, 4))
    apply(versions, rollout_actions.start_canary("m", versions, 5, 0.1))
    assert apply(versions, rollout_actions.rollback("m", versions)).taken_back == {5}
    assert is_taken_back(6, versions.checkpoints, {5}), "it was trained from 5"
    assert not is_taken_back(4, versions.checkpoints, {5})
    assert apply(versions, rollout_actions.pin("m", versions, 3)).taken_back == {5}, "kept by other decisions"
    assert apply(versions, rollout_actions.start_canary("m", versions, 6, 0.1)).taken_back == set()


def test_a_canary_s_rollback_ends_the_following_of_versions_trained_from_it(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.start_canary("m", versions, 5, 0.1))
    served = apply(versions, rollout_actions.rollback("m", versions))
    assert (served.stable, served.follows_newest) == (4, False), "6 was trained from 5"
    assert served.taken_back == {5}


def test_a_canary_s_rollback_leaves_a_newest_version_of_another_line(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.start_canary("m", versions, 3, 0.1))
    served = apply(versions, rollout_actions.rollback("m", versions))
    assert (served.stable, served.follows_newest) == (6, True)
    assert served.taken_back == {3}


def test_a_rollback_of_the_stable_version_takes_that_one_back(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.promote("m", versions, 4))
    apply(versions, rollout_actions.promote("m", versions, 6))
    served = apply(versions, rollout_actions.rollback("m", versions))
    assert (served.stable, served.taken_back) == (4, frozenset({6}))
    assert apply(versions, rollout_actions.promote("m", versions, 6)).taken_back == set()
    apply(versions, rollout_actions.rollback("m", versions))
    assert apply(versions, rollout_actions.follow("m", versions)).taken_back == set()


def test_a_canary_that_ends_without_judgement_is_not_taken_back(versions: ModelVersions) -> None:
    apply(versions, rollout_actions.promote("m", versions, 4))
    apply(versions, rollout_actions.start_canary("m", versions, 5, 0.1))
    assert apply(versions, rollout_actions.stop_canary("m", versions)).taken_back == set()
