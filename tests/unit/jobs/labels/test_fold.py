"""Trajectories: joined in any order of arrival, closed by their end or a timeout, revised by late events."""

from typing import Any

import pytest
from fold_harness import FoldRun, MemoryChanges, MemoryState
from hypothesis import given, settings
from hypothesis import strategies as st
from label_runs import label_settings
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.jobs.labels import JOB, publish, review
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.spec_lookup import FixedSpec
from stepstream.topics.events import new_message

LABELS, CLOSURES = "labeled-trajectories", "closures"
NOW_MS = 1_760_000_100_000
NO_STEP = "closed trajectory has no saved step; it has 1 feedback events and 0 holds"


def label_run(state: MemoryState | None = None, **limits: Any) -> FoldRun:
    state = state or MemoryState()
    run = FoldRun(JOB, None, state)  # type: ignore[arg-type]
    values = label_settings(**limits)
    run.fold = LabelFold(state, FixedSpec(RewardSpec()), run.codec, settings=values)  # type: ignore[arg-type]
    return run


def steps_of(run: FoldRun, name: str, count: int = 3, **fields: Any) -> list[Any]:
    return [run.record("governed-steps", as_governed(step)) for step in make_steps(name, count, **fields)]


def feedback_record(run: FoldRun, feedback: Any) -> Any:
    return run.record("governed-feedback", as_governed(feedback))


def without_revision(label: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in label.items() if name not in ("revision", "event_id", "opened_at_us")}


def test_a_trajectory_is_labelled_once_it_ended_and_all_steps_came() -> None:
    run = label_run()
    assert run.feed(steps_of(run, "t", group_id="g")) == []
    [(topic, key, label)] = run.feed([feedback_record(run, make_ending("t", 3))])
    assert (topic, key) == (LABELS, "g")
    assert label["revision"] == 1
    assert (label["success"], label["reward"], label["complete"], label["trainable"]) == (True, 1.0, True, True)
    assert (label["closed_by"], label["end"], label["fidelity"]) == ("end", "terminated", "token")
    assert [(step["reward"], step["return_to_go"]) for step in label["steps"]] == [(0, 1), (0, 1), (1, 1)]
    assert (label["version_min"], label["version_max"]) == (3, 3)
    assert (label["prompt_tokens"], label["response_tokens"]) == (15, 12)
    assert label["tools"] == [{"name": "get", "calls": 3, "errors": 0, "duration_ms": 0.0}]
    assert len(label["sequences"]) == 1
    assert label["flags"] == []
    assert label["occurred_at_us"] == make_ending("t", 3)["occurred_at_us"]


def test_the_end_may_come_before_the_steps() -> None:
    run = label_run()
    assert run.feed([feedback_record(run, make_ending("t", 3))]) == []
    first, second, third = steps_of(run, "t")
    assert run.feed([third, first]) == []
    assert len(run.feed([second])) == 1


def test_a_step_may_end_its_trajectory() -> None:
    run = label_run()
    steps = make_steps("t", 2)
    steps[1]["end"] = "truncated"
    [(_, key, label)] = run.feed([run.record("governed-steps", as_governed(step)) for step in steps])
    assert key == "t"
    assert (label["end"], label["success"], label["trainable"]) == ("truncated", None, False)
    assert label["flags"] == ["outcome:missing", "quality:truncated"]


def test_a_trajectory_that_ends_in_a_failed_call_is_trainable() -> None:
    run = label_run()
    steps = make_steps("t", 3)
    steps[2] |= {"response_token_ids": [], "response_logprobs": [], "policy_spans": [], "prompt_shared_tokens": 0}
    steps[2] |= {"error": "invalid_request_error", "fidelity": "text"}
    steps[2]["response"] = new_message(role="assistant")
    governed = [run.record("governed-steps", as_governed(step)) for step in steps]
    [(_, _, label)] = run.feed([*governed, feedback_record(run, make_ending("t", 3, value=0.0))])
    assert (label["fidelity"], label["trainable"], label["flags"]) == ("token", True, [])
    assert [step["trainable"] for step in label["steps"]] == [True, True, False]
    assert len(label["sequences"]) == 1
    # The part of the response before the failure was captured as text only.
    steps[2]["response"]["content"] = "so far"
    governed = [run.record("governed-steps", as_governed(step | {"trajectory_id": "u"})) for step in steps]
    [(_, _, label)] = run.feed([*governed, feedback_record(run, make_ending("u", 3, value=0.0))])
    assert (label["fidelity"], label["flags"]) == ("text", ["fidelity:text"])


def test_late_feedback_gives_a_revision_only_if_it_changes_the_label() -> None:
    run = label_run()
    run.feed([*steps_of(run, "t"), feedback_record(run, make_ending("t", 3))])
    [(_, _, second)] = run.feed([feedback_record(run, make_feedback("t", 0.0, number=1))])
    assert (second["revision"], second["success"]) == (2, False)
    assert run.feed([feedback_record(run, make_feedback("t", 0.0, number=1))]) == []
    assert run.feed([feedback_record(run, make_feedback("t", 1.0, name="thumbs", number=2))]) == []
    # An older outcome changes the inputs and not the reward; it still gives a revision.
    taken_back = make_feedback("t", None, number=3, retracts=make_feedback("t", number=1)["event_id"])
    [(_, _, third)] = run.feed([feedback_record(run, taken_back)])
    assert (third["revision"], third["success"]) == (3, True)


def test_a_late_step_gives_a_revision() -> None:
    run = label_run()
    first, second, third = steps_of(run, "t")
    run.feed([first, third, feedback_record(run, make_ending("t", 3))])
    [(_, _, closed)] = run.tick(NOW_MS + 31_000)
    [(_, _, partial)] = run.feed([run.record(CLOSURES, closed)])
    assert (partial["complete"], partial["closed_by"], partial["trainable"]) == (False, "incomplete", False)
    assert "incomplete" in partial["flags"]
    [(_, _, complete)] = run.feed([second])
    assert (complete["revision"], complete["complete"], complete["trainable"]) == (2, True, True)


def test_an_idle_trajectory_is_closed_by_an_event() -> None:
    run = label_run()
    run.feed(steps_of(run, "t"))
    assert run.tick(NOW_MS + 599_000) == []
    [(topic, key, closed)] = run.tick(NOW_MS + 601_000)
    assert (topic, key, closed["reason"], closed["last_step_index"]) == (CLOSURES, "t", "idle", 2)
    assert run.tick(NOW_MS + 602_000) == []  # decided once
    [(_, _, label)] = run.feed([run.record(CLOSURES, closed)])
    assert (label["closed_by"], label["end"], label["complete"]) == ("idle", "open", True)
    assert run.tick(NOW_MS + 2_000_000) == []


def test_a_new_event_postpones_the_timeout() -> None:
    run = label_run()
    run.feed(steps_of(run, "t", 1))
    later = run.record("governed-steps", as_governed(make_steps("t", 2)[1]), at_ms=NOW_MS + 500_000)
    run.feed([later])
    assert run.tick(NOW_MS + 700_000) == []
    assert len(run.tick(NOW_MS + 1_101_000)) == 1


def test_timeouts_of_open_trajectories_survive_a_restart() -> None:
    run = label_run()
    run.feed(steps_of(run, "t"))
    again = label_run(run.state)
    assert len(again.tick(NOW_MS + 601_000)) == 1


def test_feedback_without_steps_times_out_without_a_label() -> None:
    run = label_run()
    run.feed([feedback_record(run, make_feedback("nobody"))])
    [(_, _, closed)] = run.tick(NOW_MS + 601_000)
    assert closed["last_step_index"] == -1
    [(topic, _, letter)] = run.feed([run.record(CLOSURES, closed)])
    assert (topic, letter["reason"]) == ("dead-letters", NO_STEP)
    assert run.tick(NOW_MS + 5_000_000) == []


def test_a_closed_trajectory_expires_after_its_retention_period() -> None:
    run = label_run(keep_days=30)
    run.feed([*steps_of(run, "t"), feedback_record(run, make_ending("t", 3))])
    run.tick(NOW_MS + 29 * 86_400_000)
    [(_, _, second)] = run.feed([feedback_record(run, make_feedback("t", 0.0, number=1))])
    assert second["revision"] == 2
    run.tick(NOW_MS + 32 * 86_400_000)
    assert set(run.state.content) == {review._REVIEWED}


def test_a_second_event_for_a_step_is_a_dead_letter() -> None:
    run = label_run()
    [step] = make_steps("t", 1)
    [other] = make_steps("t", 1, seed=1)
    outputs = run.feed([run.record("governed-steps", as_governed(s)) for s in (step, other, step)])
    assert [(topic, event["error"], event["offset"]) for topic, _, event in outputs] == [("dead-letters", "invalid", 1)]


@pytest.mark.parametrize(
    ("fields", "flag"), [({"split": "eval"}, "split:eval"), ({"consent": "analyse"}, None)], ids=["eval", "analyse"]
)
def test_an_untrainable_label_has_no_sequences(fields: dict[str, Any], flag: str | None) -> None:
    run = label_run()
    [(_, _, label)] = run.feed([*steps_of(run, "t", **fields), feedback_record(run, make_ending("t", 3))])
    assert (label["trainable"], label["sequences"]) == (False, [])
    assert flag is None or flag in label["flags"]
    assert not any(step["trainable"] for step in label["steps"])


def test_feedback_without_training_consent_makes_the_label_untrainable() -> None:
    run = label_run()
    [(_, _, label)] = run.feed([*steps_of(run, "t"), feedback_record(run, make_ending("t", 3, consent="analyse"))])
    assert (label["consent"], label["trainable"], label["success"]) == ("analyse", False, True)


def test_a_restored_label_is_not_published_again() -> None:
    run = label_run()
    steps, ending = steps_of(run, "t"), feedback_record(run, make_ending("t", 3))
    [(_, _, label)] = run.feed([*steps, ending])
    rebuilt = label_run()
    changes = MemoryChanges(rebuilt.state)
    rebuilt.fold.restore_published(label, changes)
    rebuilt.state.write(changes)
    assert rebuilt.feed([ending, *steps]) == []
    [(_, _, second)] = rebuilt.feed([feedback_record(rebuilt, make_feedback("t", 0.0, number=1))])
    assert second["revision"] == 2


def test_a_rebuild_keeps_a_trajectory_of_old_events_as_long_as_before() -> None:
    """The retention period counts from arrival; imported events are old."""
    run = label_run()
    records = [*steps_of(run, "t"), feedback_record(run, make_ending("t", 3))]
    [(_, _, label)] = run.feed(records)
    rebuilt = label_run()
    changes = MemoryChanges(rebuilt.state)
    rebuilt.fold.restore_published(label | {"occurred_at_us": 0}, changes)
    rebuilt.state.write(changes)
    rebuilt.feed(records)
    rebuilt.tick(records[-1].timestamp_ms)
    [(_, _, second)] = rebuilt.feed([feedback_record(rebuilt, make_feedback("t", 0.0, number=1))])
    assert second["revision"] == 2


@settings(max_examples=60)
@given(st.data())
def test_the_last_revision_does_not_depend_on_the_order(data: st.DataObject) -> None:
    """Order, redelivery, batches and restarts of the job change how often a label is revised, not how it ends."""
    events: list[tuple[str, Any]] = []
    for name in ("a", "b"):
        events += [("governed-steps", step) for step in make_steps(name, 3, group_id="g")]
        events.append(("governed-feedback", make_ending(name, 3)))
        events.append(("governed-feedback", make_feedback(name, 0.0, number=1)))
        events.append(
            ("governed-feedback", make_feedback(name, 0.5, number=2, retracts=make_feedback(name)["event_id"]))
        )
    events = [(topic, as_governed(event)) for topic, event in events]
    in_order = label_run()
    expected = last_labels([in_order.feed([in_order.record(topic, event) for topic, event in events])])
    shuffled = data.draw(st.permutations(events))
    shuffled += data.draw(st.lists(st.sampled_from(events), max_size=5))
    run = label_run()
    batches = []
    while shuffled:
        size = data.draw(st.integers(1, len(shuffled)))
        batches.append(run.feed([run.record(topic, event) for topic, event in shuffled[:size]]))
        shuffled = shuffled[size:]
        if data.draw(st.booleans()):
            run.fold = label_run(run.state).fold
    assert last_labels(batches) == expected
    revisions = [label["revision"] for outputs in batches for _, _, label in outputs if label["trajectory_id"] == "a"]
    assert revisions == list(range(1, len(revisions) + 1))


def test_every_revision_opens_at_the_first_step_of_the_log() -> None:
    run = label_run()
    steps = [as_governed(step) for step in make_steps("t", 3)]
    events = [("governed-steps", steps[1]), ("governed-steps", steps[0]), ("governed-steps", steps[2])]
    ending = ("governed-feedback", as_governed(make_ending("t", 3)))
    late = ("governed-feedback", as_governed(make_feedback("t", 0.0, number=1)))
    labels = [
        label
        for batch in ([*events, ending], [late])
        for _, _, label in run.feed([run.record(*each) for each in batch])
    ]
    assert len(labels) == 2
    assert {label["opened_at_us"] for label in labels} == {steps[1]["occurred_at_us"]}
    assert {label["started_at_us"] for label in labels} == {steps[0]["occurred_at_us"]}


def last_labels(batches: list[list[tuple[str, str, Any]]]) -> dict[str, Any]:
    return {label["trajectory_id"]: without_revision(label) for outputs in batches for _, _, label in outputs}


def test_a_new_job_version_labels_saved_trajectories_once(monkeypatch: pytest.MonkeyPatch) -> None:
    state = MemoryState()
    with monkeypatch.context() as then:
        then.setattr(publish, "JOB", "label@0")
        then.setattr(review, "_REVIEWED", b"r0")
        run = label_run(state)
        run.feed([*steps_of(run, "t"), *steps_of(run, "open")])
        [(_, _, first)] = run.feed([feedback_record(run, make_ending("t", 3))])
        assert run.tick(NOW_MS) == run.tick(NOW_MS + 1_000) == []
    run = label_run(state)
    [(topic, _, second)] = run.tick(NOW_MS + 2_000)
    assert (topic, first["revision"], second["revision"], second["labelled_by"]) == (LABELS, 1, 2, JOB)
    assert run.tick(NOW_MS + 3_000) == label_run(state).tick(NOW_MS + 4_000) == []


def test_the_same_inputs_give_the_same_bytes() -> None:
    one, two = label_run(), label_run()
    assert one.feed([*steps_of(one, "t"), feedback_record(one, make_ending("t", 3))]) == two.feed(
        [feedback_record(two, make_ending("t", 3)), *steps_of(two, "t")]
    )
