"""Everything that `label` saves has an age and a cap."""

from typing import Any

from fold_harness import state_added, state_removed
from label_runs import FEEDBACK, NOW_MS, STEPS, Run, governed, successful_trajectory
from stream_records import make_ending, make_feedback, make_steps

from stepstream.jobs.labels import fold, review, state
from stepstream.topics.ids import trajectory_name

DAY_MS = 86_400_000
LETTERS = "dead-letters"


def letters_of(outputs: list[tuple[str, str, Any]]) -> list[tuple[int, str]]:
    return [(event["offset"], event["reason"]) for topic, _, event in outputs if topic == LETTERS]


def close_idle(run: Run) -> list[tuple[str, str, Any]]:
    decisions = [event for topic, _, event in run.tick(NOW_MS + 601_000) if topic == "closures"]
    return run.feed([run.record("closures", decision) for decision in decisions])


def test_feedback_whose_steps_never_come_expires() -> None:
    run = Run()
    run.feed([run.record(FEEDBACK, governed(make_feedback(f"t{n}"))) for n in range(3)])
    assert len(letters_of(close_idle(run))) == 3
    run.tick(NOW_MS + 29 * DAY_MS)
    assert any(key.startswith(b"h") for key in run.state.content)
    run.tick(NOW_MS + 32 * DAY_MS)
    assert set(run.state.content) == {review._REVIEWED}


def test_a_closure_of_an_expired_trajectory_leaves_nothing() -> None:
    run = Run()
    run.labels(*successful_trajectory("t")[:3])
    [(_, _, decision)] = run.tick(NOW_MS + 601_000)
    other = Run()
    assert letters_of(other.feed([other.record("closures", decision)])) == []
    assert letters_of(close_idle(other)) == []
    other.tick(NOW_MS + 32 * DAY_MS)
    assert set(other.state.content) == {review._REVIEWED}


def test_a_restored_label_whose_steps_are_gone_expires() -> None:
    run, rebuilt = Run(), Run()
    [label] = run.labels(*successful_trajectory("t"))
    rebuilt.restore(label)
    rebuilt.tick(NOW_MS + 32 * DAY_MS)
    assert set(rebuilt.state.content) == {review._REVIEWED}


def test_the_oldest_trajectories_without_steps_make_room_for_new_ones() -> None:
    run = Run(max_orphans=2)
    # A trajectory with steps is none of them.
    run.labels(*successful_trajectory("whole")[:3])
    feedback = [governed(make_feedback(f"t{n}", 0.5)) for n in range(4)]
    outputs = [run.feed([run.record(FEEDBACK, event, at_ms=NOW_MS + n)]) for n, event in enumerate(feedback)]
    reason = "no step of its trajectory has come, and more than 2 trajectories of its partition wait for one"
    assert [letters_of(each) for each in outputs] == [[], [], [(0, reason)], [(1, reason)]]
    run.restart()
    assert letters_of(run.feed([run.record(FEEDBACK, governed(make_feedback("t9")), at_ms=NOW_MS + 9)])) == [
        (2, reason)
    ]
    # The feedback that is left still counts; that of the oldest does not.
    [kept] = run.labels((STEPS, governed(make_steps("t3", 1)[0])), (FEEDBACK, governed(make_ending("t3", 1, number=7))))
    assert kept["trainable"]
    [label] = run.labels((STEPS, governed(make_steps("t0", 1)[0] | {"end": "terminated"})))
    assert label["success"] is None


def test_an_older_trajectory_without_steps_is_removed_with_its_closure() -> None:
    run = Run(max_orphans=1)
    run.feed([run.record(FEEDBACK, governed(make_feedback("t0")))])
    assert len(letters_of(close_idle(run))) == 1
    # Its feedback is a dead letter already.
    assert letters_of(run.feed([run.record(FEEDBACK, governed(make_feedback("t1")), at_ms=NOW_MS + 1)])) == []


def test_steps_and_feedback_of_one_trajectory_are_bounded() -> None:
    run = Run(max_steps=3, max_feedback=2)
    steps = [governed(step) for step in make_steps("t", 4)]
    outputs = run.feed([run.record(STEPS, step) for step in steps])
    assert letters_of(outputs) == [(3, "step 3 of a trajectory that may have 3 steps: raise `label.max_steps`")]
    feedback = [governed(make_feedback("t", 1.0, name="n", number=n)) for n in range(3)]
    outputs = run.feed([run.record(FEEDBACK, event) for event in [*feedback, feedback[0]]])
    assert letters_of(outputs) == [(2, "its trajectory has 2 feedback events: raise `label.max_feedback`")]


def test_old_trajectories_are_deleted_in_slices() -> None:
    run = Run()
    for n in range(3):
        run.labels(*successful_trajectory(f"t{n}"))
    fold_module: Any = fold
    limit, fold_module._DELETED_PER_TICK = fold_module._DELETED_PER_TICK, 2
    try:
        heads = []
        for _ in range(2):
            run.tick(NOW_MS + 32 * DAY_MS)
            heads.append(sum(key.startswith(b"h") for key in run.state.content))
        assert heads == [1, 0]
        assert not run.fold.due(NOW_MS + 32 * DAY_MS)
    finally:
        fold_module._DELETED_PER_TICK = limit


def test_the_oldest_closed_trajectories_make_room_for_new_ones() -> None:
    removed = state_removed("trajectory", "cap")
    run = Run(max_trajectories=2)
    run.labels(*successful_trajectory("open")[:3])
    for n in range(4):
        at_ms = NOW_MS + n * DAY_MS
        run.feed([run.record(topic, event, at_ms=at_ms) for topic, event in successful_trajectory(f"t{n}")])
    run.restart()
    run.tick(NOW_MS)
    assert not run.fold.due(NOW_MS)
    kept = {key[1:] for key in run.state.content if key.startswith(b"h")}
    assert kept == {trajectory_name("default", name) for name in ("open", "t2", "t3")}
    assert state_removed("trajectory", "cap") - removed == 2


def test_the_cap_holds_for_a_state_of_a_release_that_counted_nothing() -> None:
    run = Run(max_trajectories=2)
    for n in range(2):
        run.labels(*successful_trajectory(f"t{n}"))
    del run.state.content[state._EXPIRIES]
    run.restart()
    run.tick(NOW_MS)
    assert not run.fold.due(NOW_MS)
    run.labels(*successful_trajectory("t2"))
    assert run.fold.due(NOW_MS)


def test_what_is_saved_and_removed_is_counted() -> None:
    added = {kind: state_added(kind) for kind in ("trajectory", "orphan")}
    removed = {key: state_removed(*key) for key in (("trajectory", "age"), ("orphan", "cap"))}
    run = Run(max_orphans=2)
    run.labels(*successful_trajectory("whole"))
    for n in range(3):
        run.feed([run.record(FEEDBACK, governed(make_feedback(f"t{n}")), at_ms=NOW_MS + n)])
    assert {kind: state_added(kind) - before for kind, before in added.items()} == {"trajectory": 4, "orphan": 3}
    close_idle(run)
    run.tick(NOW_MS + 32 * DAY_MS)
    # Two trajectories without steps and the labelled one by age; the oldest without steps by the cap.
    assert {key: state_removed(*key) - before for key, before in removed.items()} == {
        ("trajectory", "age"): 3,
        ("orphan", "cap"): 1,
    }
