"""A trajectory belongs to the tenant of its first step: another tenant's key adds nothing to it, pays nothing, ends
nothing."""

from typing import Any

from fold_harness import FoldRun, MemoryState
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.spec_lookup import FixedSpec

STEPS, FEEDBACK, LABELS, LETTERS = "governed-steps", "governed-feedback", "labeled-trajectories", "dead-letters"
NOW_MS = 1_760_000_100_000
OURS: dict[str, Any] = {"tenant": "ours"}
THEIRS: dict[str, Any] = {"tenant": "theirs"}


def label_run() -> FoldRun:
    state = MemoryState()
    run = FoldRun(JOB, None, state)  # type: ignore[arg-type]
    run.fold = LabelFold(
        state,  # type: ignore[arg-type]
        FixedSpec(RewardSpec()),
        run.codec,
        idle_timeout_s=600.0,
        end_grace_s=30.0,
        keep_days=30,
    )
    return run


def feed(run: FoldRun, topic: str, *events: Any) -> list[tuple[str, Any]]:
    records = [run.record(topic, as_governed(event)) for event in events]
    return [(topic, event) for topic, _, event in run.feed(records)]


def test_feedback_of_another_tenant_neither_pays_nor_ends() -> None:
    run = label_run()
    feed(run, STEPS, *make_steps("t", 2, **OURS))
    [(topic, letter)] = feed(run, FEEDBACK, make_ending("t", 2, **THEIRS))
    assert (topic, letter["topic"], letter["offset"], letter["error"]) == (LETTERS, FEEDBACK, 0, "invalid")
    [(topic, label)] = feed(run, FEEDBACK, make_ending("t", 2, 0.0, number=1, **OURS))
    assert (topic, label["tenant"], label["reward"]) == (LABELS, "ours", 0.0)
    assert [topic for topic, _ in feed(run, FEEDBACK, make_feedback("t", 1.0, number=2, **THEIRS))] == [LETTERS]


def test_a_step_of_another_tenant_is_not_taken_whatever_its_index_and_id() -> None:
    run = label_run()
    first, second = make_steps("t", 2, **OURS)
    feed(run, STEPS, first)
    foreign = [
        {**step, "event_id": f"00000000-0000-4000-8000-00000000000{step['step_index']}"} | THEIRS
        for step in make_steps("t", 3)
    ]
    letters = feed(run, STEPS, *foreign)
    assert [(topic, letter["offset"]) for topic, letter in letters] == [(LETTERS, 1), (LETTERS, 2), (LETTERS, 3)]
    feed(run, STEPS, second)
    [(topic, label)] = feed(run, FEEDBACK, make_ending("t", 2, **OURS))
    assert (topic, label["tenant"], len(label["steps"]), label["complete"]) == (LABELS, "ours", 2, True)


def test_what_came_before_the_first_step_is_judged_when_it_comes() -> None:
    run = label_run()
    theirs = run.record(FEEDBACK, as_governed(make_ending("t", 1, 1.0, **THEIRS)))
    assert run.feed([theirs]) == []
    assert feed(run, FEEDBACK, make_feedback("t", 0.25, number=1, **OURS)) == []
    [(topic, letter)] = feed(run, STEPS, *make_steps("t", 2, **OURS))
    assert (topic, letter["topic"], letter["offset"], letter["key"]) == (LETTERS, FEEDBACK, 0, b"t")
    assert letter["value_bytes"] == len(theirs.value or b"")
    # Nor does it hasten the end: the trajectory is closed by its silence.
    assert run.tick(NOW_MS + 31_000) == []
    [(_, _, closed)] = run.tick(NOW_MS + 601_000)
    assert closed["reason"] == "idle"
    [(_, _, label)] = run.feed([run.record("closures", closed)])
    assert (label["end"], label["reward"]) == ("open", 0.25)


def test_a_replay_that_reads_one_topic_after_the_other_gives_the_same() -> None:
    steps, early, late = (
        make_steps("t", 1, **OURS),
        make_ending("t", 1, **THEIRS),
        make_ending("t", 1, 0.5, number=1, **OURS),
    )
    live, again = label_run(), label_run()
    feed(live, FEEDBACK, early)
    feed(live, STEPS, *steps)
    [(_, label)] = feed(live, FEEDBACK, late)
    feed(again, STEPS, *steps)
    assert feed(again, FEEDBACK, early, late)[-1][1] == label
