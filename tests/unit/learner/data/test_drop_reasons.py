"""Check the replay buffer's drops, the reuse of groups and the decisions about both."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from buffers import GROUPS, SIZE, attempt_at, buffer, fold, log_from, log_of, positions_of
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import attempt, group_of, labelled

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.drop_reasons import REASONS, REMEDIES
from stepstream.learner.data.groups import AbandonedGroup, group_key
from stepstream.learner.data.learning_signal import learning_signal_of
from stepstream.learner.data.replay_buffer import ReplayBuffer
from stepstream.learner.data.sampler import GroupSampler
from stepstream.learner.decisions import Decider, Use
from stepstream.learner.lineage import uses_of
from stepstream.topics.events import new_checkpoint, new_update_input

PAGE = Path(__file__).parents[4] / "docs" / "learner.md"


def drops_of(replay_buffer: ReplayBuffer) -> list[tuple[str, int, str]]:
    """Return trajectory, revision and reason of each attempt dropped since the last call."""
    return [(drop.attempt.trajectory_id, drop.attempt.revision, drop.reason) for drop in replay_buffer.take_drops()]


def test_every_reason_has_a_remedy_and_a_line_on_the_learner_s_page() -> None:
    table = PAGE.read_text(encoding="utf-8")
    assert [reason for reason in REASONS if f"`{reason}`" not in table] == []
    assert REASONS.keys() == REMEDIES.keys()


def test_every_dropped_attempt_is_reported_once() -> None:
    records = group_of("g", SIZE)
    records[1]["consent"] = "none"
    replay_buffer = fold(buffer(), log_of(*records, labelled("x", 0, 1.0, split="eval"), labelled("g", 0, 1.0)))
    assert drops_of(replay_buffer) == [("x/0", 1, "split")]
    assert replay_buffer.take(1)
    assert drops_of(replay_buffer) == [("g/1", 1, "consent")]
    assert replay_buffer.dropped == {"split": 1, "duplicate": 1, "consent": 1}


def test_a_newer_revision_of_a_trained_attempt_is_dropped_with_both_revisions() -> None:
    log = log_of(*group_of("g", SIZE), labelled("g", 1, 1.0, revision=3), labelled("g", 7, 1.0))
    replay_buffer = fold(buffer(), log[:SIZE])
    assert replay_buffer.take(1)
    fold(replay_buffer, [*log[SIZE:], attempt_at(log[1], 9)])
    revised, late = replay_buffer.take_drops()
    assert (revised.attempt.trajectory_id, revised.reason) == ("g/1", "trained_on_older_revision")
    assert (revised.attempt.revision, revised.trained_revision) == (3, 1)
    assert (late.attempt.trajectory_id, late.reason, late.trained_revision) == ("g/7", "reuse_bound", None)
    assert replay_buffer.dropped["duplicate"] == 1
    decision = Decider("demo", 0).dropped(revised, 5)
    assert (decision["revision"], decision["trained_revision"], decision["staleness"]) == (3, 1, 5)


def test_the_trained_revision_is_known_after_a_crash() -> None:
    log = log_of(*group_of("g", SIZE), labelled("g", 1, 1.0, revision=2))
    replay_buffer = fold(buffer(trained=[(0, 0), (0, 1), (0, 2)]), log)
    assert drops_of(replay_buffer) == [("g/1", 2, "trained_on_older_revision")]
    assert replay_buffer.take(1) is None


def test_a_group_closed_as_incomplete_stays_closed_after_a_restart() -> None:
    log = log_of(*group_of("g", SIZE))
    first = fold(buffer(), log[:2])
    first.expire_groups(10.0)
    decider = Decider("demo", 0)
    decisions = [decider.dropped(drop, 0) for drop in first.take_drops()]
    given_up = list(
        decider.abandoned_attempts([*decisions, decisions[0] | {"root": 7}, decisions[0] | {"reason": "stale"}])
    )
    key = group_key("default", "g")
    assert given_up == [AbandonedGroup(key, "g/0", 1, 0), AbandonedGroup(key, "g/1", 1, 0)]
    again = fold(buffer(abandoned=given_up), log)
    assert again.take(1) is None
    assert drops_of(again) == [("g/2", 1, "group_over")]
    assert again.dropped["duplicate"] == 2


def test_nothing_that_a_copied_decision_names_is_trained_again() -> None:
    decider = Decider("demo", 0)
    decisions = [decider.trained(each, Use(1, 0, 1)) for each in log_of(*group_of("g", SIZE))]
    copy = log_of(*group_of("h", SIZE), *group_of("g", SIZE))  # the same labels at other positions
    replay_buffer = fold(buffer(abandoned=decider.decided_attempts(decisions)), copy)
    assert [{attempt.group_id for attempt in group} for group in replay_buffer.take(1) or ()] == [{"h"}]
    assert replay_buffer.take(1) is None
    assert replay_buffer.dropped["duplicate"] == SIZE
    fold(replay_buffer, log_of(labelled("g", 0, 0.0, revision=2)))
    assert drops_of(replay_buffer) == [("g/0", 2, "trained_on_older_revision")]


def test_a_group_may_be_used_again_and_less_used_ones_go_first() -> None:
    log = log_of(*group_of("a", SIZE), *group_of("b", SIZE, versions=(0,)))
    replay_buffer = fold(buffer(reuse=2), log[:SIZE])
    assert [group[0].group_id for group in replay_buffer.take(1, 1) or ()] == ["a"]
    fold(replay_buffer, log[SIZE:])
    taken = [group[0].group_id for update in (2, 3, 4) for group in replay_buffer.take(1, update) or ()]
    assert taken == ["b", "a", "b"]
    assert replay_buffer.take(1, 5) is None
    assert drops_of(replay_buffer) == []


def test_a_newer_revision_between_two_uses_replaces_the_older_one() -> None:
    log = log_of(*group_of("g", SIZE), labelled("g", 1, 1.0, revision=2))
    replay_buffer = fold(buffer(reuse=2), log[:SIZE])
    replay_buffer.take(1)
    fold(replay_buffer, log[SIZE:])
    assert positions_of(replay_buffer.take(1)) == [(0, 0), (0, 2), (0, 3)]
    assert drops_of(replay_buffer) == []


def test_an_attempt_that_became_stale_behind_a_cap_names_the_cap() -> None:
    choice = GroupSampler(tenant_share=0.5)
    records = [*group_of("a", SIZE), *group_of("b", SIZE), *group_of("c", SIZE, tenant="other")]
    replay_buffer = fold(buffer(sampler=choice), log_of(*records))
    taken = replay_buffer.take(2) or []
    assert [group[0].group_id for group in taken] == ["a", "c"]
    replay_buffer.advance(3)
    assert {reason for _, _, reason in drops_of(replay_buffer)} == {"tenant_share"}


@pytest.mark.parametrize(
    ("advantage", "ready"), [("dr_grpo", 0), ("reinforce_pp", 1), ("reinforce_pp_baseline", 0), ("gigpo", 0)]
)
def test_the_rule_decides_whether_equal_rewards_yield_a_gradient(advantage: str, ready: int) -> None:
    config = LearnerSettings.model_validate({"preset": "tiny", "advantage": advantage})
    replay_buffer = fold(
        buffer(signal=learning_signal_of(config)), log_of(*(labelled("g", n, 1.0) for n in range(SIZE)))
    )
    assert replay_buffer.ready() == ready
    assert {reason for _, _, reason in drops_of(replay_buffer)} == (set() if ready else {"no_variance"})


def test_trained_attempts_are_read_from_the_lineage() -> None:
    def version(number: int, update: int, offsets: list[int]) -> Any:
        inputs = [new_update_input(update=update, partitions=[0] * len(offsets), offsets=offsets)]
        return new_checkpoint(
            event_id="", occurred_at_us=0, model="m", version=number, uri="", weights_sha256="", code_version="",
            inputs=inputs,
        )  # fmt: skip

    uses = uses_of([version(2, 2, [4, 5]), version(1, 1, [3, 4])], {0: 4})
    assert uses == {(0, 4): [Use(2, 1, 2), Use(1, 0, 1)], (0, 5): [Use(2, 1, 2)]}


def test_the_same_decision_has_the_same_id_and_others_have_others() -> None:
    decider, one = Decider("demo", 0), attempt(labelled("g", 0, 1.0))
    trained = decider.trained(one, Use(3, 1, 2))
    assert trained["event_id"] == decider.trained(one, Use(3, 1, 2))["event_id"]
    assert (trained["update"], trained["checkpoint_version"], trained["staleness"]) == (3, 2, 1)
    others = [
        decider.trained(one, Use(4, 1, 2)),
        Decider("demo", 1).trained(one, Use(3, 1, 2)),
        decider.trained(replace(one, position=(0, 1)), Use(3, 1, 2)),
    ]
    assert len({trained["event_id"], *(other["event_id"] for other in others)}) == 4


# --- laws


@given(GROUPS, st.integers(1, 3), st.data())
def test_no_group_exceeds_the_reuse_bound_after_any_crash(groups: list[list[float]], reuse: int, data: Any) -> None:
    log = log_from(groups)
    revision = data.draw(st.sampled_from([1, 2]))
    log += [attempt_at(each, len(log) + i, revision) for i, each in enumerate(log)]
    trained: list[list[Attempt]] = []
    replay_buffer, version, position = buffer(reuse=reuse), 0, 0
    resume, published, published_version = {0: 0}, 0, 0
    reasons: set[str] = set()
    for _ in range(data.draw(st.integers(1, 14))):
        action = data.draw(st.sampled_from(["read", "read", "train", "train", "publish", "crash"]))
        if action == "read":
            upto = data.draw(st.integers(position, len(log)))
            fold(replay_buffer, log[position:upto])
            position = upto
        elif action == "train":
            trained += replay_buffer.take(1) or []
        elif action == "publish":
            version += 1
            resume, published, published_version = replay_buffer.resume_offsets(), len(trained), version
            replay_buffer.advance(version)
        else:
            del trained[published:]
            version, position = published_version, resume[0]
            before = [place for group in trained for place in positions_of([group]) if place[1] >= resume[0]]
            replay_buffer = buffer(reuse=reuse, positions=resume, version=version, trained=before)
        reasons |= {reason for _, _, reason in drops_of(replay_buffer)}
    fold(replay_buffer, log[position:])
    while (taken := replay_buffer.take(1)) is not None:
        trained += taken
    reasons |= {reason for _, _, reason in drops_of(replay_buffer)}
    names = [each.trajectory_id for group in trained for each in group]
    assert all(names.count(name) <= reuse for name in names)
    assert reasons <= REASONS.keys()


@given(GROUPS, st.data())
def test_every_attempt_is_trained_or_waits_or_is_dropped_with_a_reason(groups: list[list[float]], data: Any) -> None:
    log = log_from([rewards[:SIZE] for rewards in groups])
    replay_buffer = fold(buffer(), log)
    trained = (
        {each.trajectory_id for group in replay_buffer.take(replay_buffer.ready()) or () for each in group}
        if replay_buffer.ready()
        else set()
    )
    if data.draw(st.booleans()):
        replay_buffer.expire_groups(10.0)
    dropped = {name for name, _, _ in drops_of(replay_buffer)}
    everyone = {each.trajectory_id for each in log}
    assert not trained & dropped
    assert (trained | dropped == everyone) or replay_buffer.waiting()
