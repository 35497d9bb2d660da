"""Check how attempts become groups, and groups become updates."""

from dataclasses import replace
from typing import Any

import pytest
from buffers import GROUPS, SIZE, attempt_at, buffer, fold, log_from, log_of, positions_of
from credit_cases import LOSS_OF
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import LIMITS, group_of, labelled

from stepstream.config import LearnerSettings
from stepstream.config.learner import UNGROUPED_RULES
from stepstream.learner.data.attempt import Attempt, LogPosition, attempt_of
from stepstream.learner.data.groups import SINGLE_PREFIX, key_of
from stepstream.learner.data.learning_signal import learning_signal_of
from stepstream.learner.data.replay_buffer import ReplayBuffer


def test_a_group_is_ready_when_all_attempts_have_come() -> None:
    first, second, third = log_of(*group_of("g", SIZE))
    replay_buffer = fold(buffer(), [first, third])
    assert replay_buffer.take(1) is None
    assert positions_of(fold(replay_buffer, [second]).take(1)) == [(0, 0), (0, 1), (0, 2)]
    assert replay_buffer.take(1) is None


def test_the_same_group_id_of_two_tenants_is_two_groups() -> None:
    foreign = [record | {"tenant": "other", "trajectory_id": f"t{n}"} for n, record in enumerate(group_of("g", SIZE))]
    first, second, third, *others = log_of(*group_of("g", SIZE), *foreign)
    replay_buffer = fold(buffer(), [first, second, others[0]])
    assert replay_buffer.take(1) is None
    fold(replay_buffer, [third, *others[1:]])
    assert [positions_of([group]) for group in replay_buffer.take(2) or []] == [
        [(0, n) for n in range(start, start + SIZE)] for start in (0, SIZE)
    ]


def test_attempts_without_a_group_are_their_tenants() -> None:
    mine, *_ = group_of("g", SIZE)
    single: dict[str, Any] = {"group_id": None, "trajectory_id": "t"}
    attempts = log_of(*({**mine, **single, "tenant": tenant} for tenant in ("default", "ours", "theirs")))
    assert len({key_of(attempt) for attempt in attempts}) == 3
    assert all(key_of(attempt).startswith(SINGLE_PREFIX) for attempt in attempts)


def test_the_newest_revision_counts() -> None:
    revised = labelled("g", 1, 1.0, revision=2)
    replay_buffer = fold(buffer(), log_of(*group_of("g", SIZE), revised))
    assert positions_of(replay_buffer.take(1)) == [(0, 0), (0, 2), (0, 3)]
    assert replay_buffer.dropped == {"superseded": 1}


def test_a_revision_may_leave_nothing_to_learn() -> None:
    replay_buffer = fold(buffer(), log_of(*group_of("g", SIZE), labelled("g", 0, 0.0, revision=2)))
    assert replay_buffer.take(1) is None
    assert replay_buffer.dropped == {"superseded": 1, "no_variance": 3}


def test_groups_without_variance_are_counted_and_skipped() -> None:
    replay_buffer = fold(buffer(), log_of(*(labelled("g", n, 1.0) for n in range(SIZE))))
    assert replay_buffer.take(1) is None
    assert replay_buffer.dropped == {"no_variance": SIZE}


def test_an_excluded_attempt_still_completes_its_group() -> None:
    records = group_of("g", SIZE)
    records[2]["consent"] = "none"
    replay_buffer = fold(buffer(), log_of(*records))
    assert positions_of(replay_buffer.take(1)) == [(0, 0), (0, 1)]


def test_a_group_waits_for_a_late_outcome() -> None:
    early = labelled("g", 2, 0.0, success=None, trainable=False)
    replay_buffer = fold(buffer(), log_of(*group_of("g", 2), early, labelled("g", 2, 1.0, revision=2)))
    assert positions_of(replay_buffer.take(1)) == [(0, 0), (0, 1), (0, 3)]


def test_a_group_of_one_is_dropped() -> None:
    records = group_of("g", SIZE)
    records[1]["trainable"] = records[2]["trainable"] = False
    replay_buffer = fold(buffer(), log_of(*records))
    assert replay_buffer.ready() == 0
    assert replay_buffer.dropped == {"not_trainable": 2, "group_too_small": 1}


def test_an_incomplete_group_is_closed_and_stays_closed() -> None:
    first, second, third = log_of(*group_of("g", SIZE))
    replay_buffer = fold(buffer(), [first], now_s=5.0)
    fold(replay_buffer, [second], now_s=14.0)
    replay_buffer.expire_groups(14.9)
    assert replay_buffer.waiting() == 1
    replay_buffer.expire_groups(15.0)
    assert replay_buffer.waiting() == 0
    assert fold(replay_buffer, [third]).take(1) is None
    assert replay_buffer.dropped == {"group_incomplete": 2, "group_over": 1}


def test_staleness_is_the_oldest_trained_token_s() -> None:
    replay_buffer = fold(
        buffer(version=5), log_of(*group_of("ok", SIZE, versions=(5, 3)), *group_of("old", SIZE, versions=(5, 2)))
    )
    assert {each.group_id for group in replay_buffer.take(1) or () for each in group} == {"ok"}
    assert replay_buffer.dropped == {"stale": SIZE}


def test_a_ready_group_grows_stale_while_it_waits() -> None:
    replay_buffer = fold(buffer(), log_of(*group_of("g", SIZE)))
    replay_buffer.advance(2)
    assert replay_buffer.ready() == 1
    replay_buffer.advance(3)
    assert replay_buffer.ready() == 0
    assert replay_buffer.dropped == {"stale": SIZE}


def test_the_freshest_groups_go_first() -> None:
    replay_buffer = buffer(version=2)
    fold(replay_buffer, log_of(*group_of("old", SIZE, versions=(0,)), *group_of("new", SIZE, versions=(2,))))
    assert [group[0].group_id for group in replay_buffer.take(1) or ()] == ["new"]


def test_labels_of_an_excluded_reward_specification_are_dropped_also_from_ready_groups() -> None:
    gamed = [record | {"reward_spec": "gamed"} for record in (*group_of("g", SIZE), *group_of("late", SIZE))]
    replay_buffer = fold(buffer(), log_of(*gamed[:SIZE], *group_of("sound", SIZE)))
    assert replay_buffer.ready() == 2
    replay_buffer.exclude_specs({"gamed"})
    assert (replay_buffer.ready(), replay_buffer.dropped) == (1, {"excluded_reward_spec": SIZE})
    fold(replay_buffer, [attempt_at(each, 2 * SIZE + n) for n, each in enumerate(log_of(*gamed[SIZE:]))])
    assert replay_buffer.dropped == {"excluded_reward_spec": 2 * SIZE}
    assert positions_of(replay_buffer.take(1)) == [(0, SIZE + n) for n in range(SIZE)]
    assert {drop.reason for drop in replay_buffer.take_drops()} == {"excluded_reward_spec"}


def test_a_group_keeps_its_labels_of_other_specifications_and_newer_revisions() -> None:
    records = group_of("g", SIZE)
    records[0]["reward_spec"] = records[2]["reward_spec"] = "gamed"
    revised = records[0] | {"reward_spec": "sound", "revision": 2}
    replay_buffer = fold(buffer(excluded_specs={"gamed"}), log_of(*records[:2], revised, records[2]))
    assert positions_of(replay_buffer.take(1)) == [(0, 1), (0, 2)]
    assert replay_buffer.dropped == {"superseded": 1, "excluded_reward_spec": 1}


def test_a_group_of_an_excluded_specification_is_trained_on_once_it_is_labelled_again() -> None:
    gamed = [record | {"reward_spec": "gamed"} for record in group_of("g", SIZE)]
    sound = [record | {"reward_spec": "sound", "revision": 2} for record in gamed]
    records = log_of(*gamed, *sound)
    replay_buffer = fold(buffer(excluded_specs={"gamed"}), records[: 2 * SIZE - 1])
    assert replay_buffer.take(1) is None
    fold(replay_buffer, [records[-1], *records[:SIZE]])  # and copies of the first labels
    assert positions_of(replay_buffer.take(1)) == [(0, SIZE + n) for n in range(SIZE)]
    fold(replay_buffer, records)
    assert replay_buffer.take(1) is None
    assert {drop.reason for drop in replay_buffer.take_drops()} == {"excluded_reward_spec", "superseded"}


def test_a_restart_drops_what_was_dropped_and_remembers_what_was_trained_on() -> None:
    trained = [record | {"reward_spec": "gamed"} for record in group_of("g", SIZE)]
    waiting = [record | {"reward_spec": "gamed"} for record in group_of("h", SIZE)]
    replay_buffer = buffer(trained=[(0, n) for n in range(SIZE)], excluded_specs={"gamed"})
    fold(replay_buffer, log_of(*trained, *waiting))
    assert replay_buffer.take(1) is None
    assert [drop.attempt.position for drop in replay_buffer.take_drops()] == [(0, SIZE + n) for n in range(SIZE)]


def test_after_an_undo_new_labels_of_the_specification_are_trained_on() -> None:
    replay_buffer = buffer(excluded_specs={"gamed"})
    replay_buffer.exclude_specs(set())
    fold(replay_buffer, log_of(*(record | {"reward_spec": "gamed"} for record in group_of("g", SIZE))))
    assert positions_of(replay_buffer.take(1)) == [(0, n) for n in range(SIZE)]


def test_attempts_of_another_lineage_are_dropped() -> None:
    replay_buffer = fold(buffer(root=4, version=4), log_of(*group_of("g", SIZE, versions=(3, 4))))
    assert replay_buffer.ready() == 0
    assert replay_buffer.dropped == {"other_lineage": SIZE}


def test_reading_resumes_at_the_oldest_record_that_may_matter() -> None:
    records = [
        *group_of("trained", SIZE),
        *group_of("dull", SIZE),
        labelled("open", 0, 1.0),
        labelled("x", 0, 1.0, split="eval"),
    ]
    for record in records[3:6]:
        record["reward"] = 0.0
    replay_buffer = fold(buffer(), log_of(*records))
    replay_buffer.mark_read((3, 7))
    assert replay_buffer.resume_offsets() == {0: 0, 3: 8}
    assert replay_buffer.take(1)
    assert replay_buffer.resume_offsets() == {0: 0, 3: 8}
    replay_buffer.advance(3)  # a copy of what was trained on would be stale now
    assert replay_buffer.resume_offsets() == {0: 8, 3: 8}


def test_no_group_is_handed_out_before_the_trained_records_were_read_again() -> None:
    older = group_of("g", SIZE)
    newer = [labelled("g", n, float(n == 0), revision=2) for n in range(SIZE)]
    log = log_of(*older, *newer, *group_of("h", SIZE))
    replay_buffer = buffer(trained=[(0, 3), (0, 4), (0, 5)])
    assert fold(replay_buffer, log[:3]).take(1) is None
    assert fold(replay_buffer, log[3:5]).take(1) is None
    assert fold(replay_buffer, log[5:]).take(2) is None
    assert positions_of(replay_buffer.take(1)) == [(0, 6), (0, 7), (0, 8)]


# --- attempts without a group


def lone(number: int, reward: float = 1.0, **fields: Any) -> Attempt:
    """An attempt without a group, where those are taken."""
    record = labelled("alone", number, reward, group_id=None, **fields)
    return attempt_of(record, (0, number), replace(LIMITS, takes_single=True))


def alone_buffer(name: str, **changes: Any) -> ReplayBuffer:
    config = LearnerSettings.model_validate({"preset": "tiny", "advantage": name, **LOSS_OF.get(name, {})})
    return buffer(signal=learning_signal_of(config), **changes)


@pytest.mark.parametrize("name", sorted(UNGROUPED_RULES))
def test_an_attempt_without_a_group_is_a_group_of_one(name: str) -> None:
    replay_buffer = fold(alone_buffer(name), [lone(0), lone(1), lone(1)])
    assert replay_buffer.ready() == 2
    assert [positions_of([group]) for group in replay_buffer.take(2) or ()] == [[(0, 0)], [(0, 1)]]
    assert replay_buffer.dropped == {"duplicate": 1}
    fold(replay_buffer, [lone(0, revision=2)])
    assert replay_buffer.take(1) is None
    assert replay_buffer.dropped["trained_on_older_revision"] == 1


def test_an_attempt_without_a_group_is_dropped_if_attempts_are_compared() -> None:
    record = labelled("alone", 0, 1.0, group_id=None)
    replay_buffer = fold(alone_buffer("dr_grpo"), log_of(record))
    assert replay_buffer.ready() == replay_buffer.waiting() == 0
    assert replay_buffer.dropped == {"no_group": 1}


def test_an_attempt_without_a_group_depends_on_its_own_label_only() -> None:
    replay_buffer = fold(
        alone_buffer("reinforce_pp"), [lone(0, consent="none"), lone(1, success=None, trainable=False)]
    )
    assert (replay_buffer.ready(), replay_buffer.waiting()) == (0, 1)
    replay_buffer.expire_groups(10.0)
    assert replay_buffer.waiting() == 0
    assert replay_buffer.dropped == {"consent": 1, "no_outcome": 1}
    fold(replay_buffer, [lone(0, consent="none"), lone(0, revision=2), lone(1, revision=2)], now_s=99.0)
    assert replay_buffer.ready() == 2  # nobody else's credit hangs on them
    replay_buffer.advance(3)
    assert replay_buffer.dropped["stale"] == 2


def test_a_trained_attempt_without_a_group_is_recognised_after_a_crash() -> None:
    replay_buffer = fold(alone_buffer("reinforce_pp", trained=[(0, 0)]), [lone(0), lone(1), lone(0, revision=2)])
    assert positions_of(replay_buffer.take(1)) == [(0, 1)]
    assert replay_buffer.take(1) is None


# --- laws


def outcome(replay_buffer: ReplayBuffer) -> set[LogPosition]:
    """Return the groups that may be trained on."""
    ready = replay_buffer.take(replay_buffer.ready()) if replay_buffer.ready() else []
    return set(positions_of(ready))


@given(GROUPS, st.randoms(use_true_random=False))
def test_redelivery_and_order_across_groups_change_nothing(groups: list[list[float]], rng: Any) -> None:
    log = log_from([rewards[:SIZE] for rewards in groups])
    again = [attempt_at(each, len(log) + i) for i, each in enumerate(rng.sample(log, rng.randrange(len(log) + 1)))]
    shuffled = log[:]
    rng.shuffle(shuffled)
    plain, doubled = fold(buffer(), log), fold(buffer(), shuffled)
    expected = outcome(plain)
    fold(doubled, again)
    assert outcome(doubled) == expected
    assert doubled.waiting() == plain.waiting()


@given(GROUPS, st.data())
def test_nothing_is_trained_twice_after_a_crash_at_any_point(groups: list[list[float]], data: Any) -> None:
    log = log_from(groups)
    revision = data.draw(st.sampled_from([1, 2]))  # everything was delivered twice, or labelled again
    log += [attempt_at(each, len(log) + i, revision) for i, each in enumerate(log)]
    trained: list[LogPosition] = []
    replay_buffer, version = buffer(), 0
    resume, published, published_version = {0: 0}, 0, 0
    position = 0
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["read", "read", "train", "publish", "crash"]))
        if action == "read":
            upto = data.draw(st.integers(position, len(log)))
            fold(replay_buffer, log[position:upto])
            position = upto
        elif action == "train":
            trained += positions_of(replay_buffer.take(1))
        elif action == "publish":
            resume, published, published_version = replay_buffer.resume_offsets(), len(trained), version + 1
            version += 1
            replay_buffer.advance(version)
        else:
            del trained[published:]
            version, position = published_version, resume[0]
            replay_buffer = buffer(positions=resume, version=version, trained=[p for p in trained if p[1] >= resume[0]])
    fold(replay_buffer, log[position:])
    while (taken := replay_buffer.take(1)) is not None:
        trained += positions_of(taken)
    by_place = {each.position: each.trajectory_id for each in log}
    names = [by_place[place] for place in trained]
    assert len(names) == len(set(names))
