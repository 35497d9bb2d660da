"""The job `verify`, without Kafka: which trajectories are judged, when, and what is published."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from fold_harness import FoldRun, MemoryChanges, MemoryState, state_added, state_removed
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.config import LabelSettings, Settings
from stepstream.jobs.governance.trajectory_policy import NoPolicies, TrajectoryPolicy
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.verifiers.base import Case, NoVerdict, Source, Unavailable, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.fold import JOB, VerifyFold
from stepstream.jobs.verifiers.options import VerifierContext
from stepstream.jobs.verifiers.pool import VerifierPool
from stepstream.jobs.verifiers.specification import Verification, VerificationConfig, load
from stepstream.topics.events import new_message, new_tool_call, new_trajectory_closed
from stepstream.topics.ids import trajectory_name

DAY_MS = 24 * 3600 * 1000


class Scripted:
    """A verifier with scripted verdicts."""

    reads_trajectory = False
    source: Source = "verifier"

    def __init__(self, *results: Verdict | Exception, reads_trajectory: bool = False) -> None:
        self.results, self.cases = list(results), list[Case]()
        self.reads_trajectory = reads_trajectory

    def verify(self, case: Case) -> Sequence[Verdict]:
        self.cases.append(case)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        if self.reads_trajectory:
            return [Verdict(result.value, step_index=turn.step_index) for turn in case.turns]
        return [result]


class Refusing(NoPolicies):
    def of(self, *_: Any) -> TrajectoryPolicy:
        return TrajectoryPolicy(consent="none")


def verification(verifier: Any, expected: Any = None, **fields: Any) -> Verification:
    return Verification(VerificationConfig(**({"name": "answer", "verifier": "scripted"} | fields)), verifier, expected)


def fold_run(*verifications: Verification, policies: Any = None, retry_s: float = 0.0, **limits: int) -> FoldRun:
    run = FoldRun(JOB, None, MemoryState())  # type: ignore[arg-type]
    bench = VerifierPool(2, retry_s, lambda: False)
    run.fold = VerifyFold(
        run.state,  # type: ignore[arg-type]
        verifications,
        bench,
        run.codec,
        policies or NoPolicies(),
        keep_days=2,
        limits=LabelSettings(**limits),
    )
    return run


def talk(name: str = "t", count: int = 2, **fields: Any) -> list[Any]:
    steps = make_steps(name, count, **fields)
    for index, step in enumerate(steps):
        step["response"] = new_message(role="assistant", content=f"answered {index}")
    return [as_governed(step) for step in steps]


def ending(name: str = "t", steps: int = 2) -> Any:
    return as_governed(make_ending(name, steps))


def fed(run: FoldRun, steps: Sequence[Any], *ends: Any) -> list[Any]:
    records = [run.record("governed-steps", step) for step in steps]
    records += [run.record("governed-feedback", end) for end in ends]
    return [event for _, _, event in run.feed(records)]


def test_a_closed_trajectory_is_judged_and_an_open_one_is_not() -> None:
    verifier = Scripted(Verdict(0.5, "word", "why"))
    run = fold_run(verification(verifier))
    assert fed(run, talk(user="ann", consent="analyse")) == []
    [feedback] = fed(run, [], ending())
    about = ("trajectory_id", "step_index", "name", "value", "category", "comment", "source", "user", "consent", "end")
    expected = ("t", None, "answer", 0.5, "word", "why", "verifier", "ann", "analyse", "open")
    assert tuple(feedback[field] for field in about) == expected
    assert [case.observed for case in verifier.cases] == ["answered 1"]


def test_a_verdict_names_the_person_whose_step_was_read() -> None:
    first, second, nobodys = talk(count=3)
    steps = [first | {"user": "ann"}, second | {"user": "bob"}, nobodys]
    levels = [verification(Scripted(Verdict(1.0)), reads="response", level=level) for level in ("trajectory", "step")]
    events = fed(fold_run(*levels), steps[:2], ending(steps=2))
    assert [(feedback["step_index"], feedback["user"]) for feedback in events] == [
        (None, "bob"),
        (0, "ann"),
        (1, "bob"),
    ]
    by_trajectory = verification(Scripted(Verdict(1.0), reads_trajectory=True))
    events = fed(fold_run(by_trajectory), steps, ending(steps=3))
    assert [feedback["user"] for feedback in events] == ["ann", "bob", "ann"]


def test_a_closed_trajectory_is_judged_without_an_end() -> None:
    run = fold_run(verification(Scripted(Verdict(1.0))))
    fed(run, talk())
    closed = new_trajectory_closed(
        event_id="c", occurred_at_us=1, trajectory_id="t", reason="idle", last_step_index=1, job="label@1"
    )
    [(topic, key, feedback)] = run.feed([run.record("closures", closed)])
    assert (topic, key, feedback["value"]) == ("feedback", "t", 1.0)


def test_a_redelivery_is_ignored_and_a_lost_state_gives_the_same_event() -> None:
    verifier = Scripted(Verdict(1.0))
    run = fold_run(verification(verifier))
    [first] = fed(run, talk(), ending())
    assert fed(run, talk(), ending()) == []
    newer = [
        step | {"governed": step["governed"] | {"policy_version": 2}, "event_id": f"n{i}"}
        for i, step in enumerate(talk())
    ]
    assert fed(run, newer) == []
    assert len(verifier.cases) == 1
    assert fed(fold_run(verification(Scripted(Verdict(1.0)))), talk(), ending()) == [first]


def test_a_late_step_retracts_the_first_verdict() -> None:
    run = fold_run(verification(Scripted(Verdict(0.0), Verdict(1.0))))
    steps = talk(count=3)
    [first] = fed(run, steps[:2], ending(steps=2))
    assert fed(run, steps[2:]) == []
    closed = new_trajectory_closed(
        event_id="c", occurred_at_us=1, trajectory_id="t", reason="idle", last_step_index=2, steps=3, job="label@1"
    )
    [(_, _, second)] = run.feed([run.record("closures", closed)])
    assert (first["retracts"], first["value"]) == (None, 0.0)
    assert (second["retracts"], second["value"]) == (first["event_id"], 1.0)
    assert second["event_id"] != first["event_id"]


def test_no_model_is_called_during_a_rebuild() -> None:
    verifier = Scripted(Verdict(1.0))
    run = fold_run(verification(verifier))
    changes, out = MemoryChanges(run.state), Outputs(JOB, run.codec, lambda call: call())  # type: ignore[arg-type]
    out.replaying = True
    records = [run.record("governed-steps", step) for step in talk()] + [run.record("governed-feedback", ending())]
    for record in records:
        run.fold.apply(record, run.codec.decode(record.topic, record.value), changes, out)
    run.fold.end_batch(changes, out)
    run.state.write(changes)
    assert fed(run, talk(), ending()) == []
    assert verifier.cases == []


def test_a_verification_judges_only_what_it_covers() -> None:
    verifier = Scripted(Verdict(1.0))
    only = ({"agents": ("other",)}, {"environments": ("e*x",)}, {"tasks": ("sum-?",)})
    config = [verification(verifier, name=str(n), **fields) for n, fields in enumerate(only)]
    run = fold_run(*config, verification(verifier, name="all", agents=("agent",), environments=("e*",), tasks=("",)))
    assert [event["name"] for event in fed(run, talk(), ending())] == ["all"]
    assert [event["name"] for event in fed(run, talk("u", task_id="sum-1"), ending("u"))] == ["2"]


def test_an_unknown_task_is_skipped() -> None:
    verifier = Scripted(Verdict(1.0))
    run = fold_run(verification(verifier, {"known": {"expected": "4"}}))
    assert fed(run, talk(), ending()) == []
    [feedback] = fed(run, talk("u", task_id="known"), ending("u"))
    assert (feedback["trajectory_id"], verifier.cases[0].expected) == ("u", {"expected": "4"})


def test_each_step_is_judged_separately() -> None:
    verifier = Scripted(Verdict(1.0), Verdict(0.5))
    run = fold_run(verification(verifier, reads="tool_arguments", level="step", tool="g*", pointer="/a/0"))
    steps = talk(count=3)
    for index in (0, 2):
        call = new_tool_call(call_id=f"c{index}", name="get", arguments=orjson.dumps({"a": [index]}).decode())
        steps[index]["response"] = new_message(role="assistant", tool_calls=[call])
    events = fed(run, steps, ending(steps=3))
    assert sorted((event["step_index"]) for event in events) == [0, 2]
    assert sorted(case.observed for case in verifier.cases) == ["0", "2"]
    assert len({event["event_id"] for event in events}) == 2


def test_a_verifier_of_whole_trajectories_judges_each_step() -> None:
    verifier = Scripted(Verdict(0.25), reads_trajectory=True)
    events = fed(fold_run(verification(verifier)), talk(), ending())
    assert [(event["step_index"], event["value"]) for event in events] == [(0, 0.25), (1, 0.25)]
    contents = [[message["content"] for message in turn.conversation] for turn in verifier.cases[0].turns]
    assert contents == [
        ["what is next?", "answered 0"],
        ["what is next?", "answered 0", "what is next?", "answered 1"],
    ]


def test_a_missing_text_is_worth_0() -> None:
    verifier = Scripted(Verdict(1.0))
    for fields in ({"reads": "tool_result"}, {"extract": "answer: (.*)"}):
        [feedback] = fed(fold_run(verification(verifier, **fields)), talk(), ending())
        assert (feedback["value"], feedback["category"]) == (0.0, "missing")
    assert verifier.cases == []


def test_shadow_feedback_has_another_name() -> None:
    [feedback] = fed(fold_run(verification(Scripted(Verdict(1.0, shadow=True)))), talk(), ending())
    assert feedback["name"] == "shadow.answer"


def test_consent_is_checked_before_verifiers_run() -> None:
    verifier = Scripted(Verdict(1.0))
    assert fed(fold_run(verification(verifier), policies=Refusing()), talk(), ending()) == []
    assert fed(fold_run(verification(verifier)), talk(consent="none"), ending()) == []
    assert verifier.cases == []


@pytest.mark.parametrize("fault", [Unavailable("away"), NoVerdict("prose"), ZeroDivisionError()])
def test_a_failing_verifier_skips_only_its_own_cases(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    run = fold_run(verification(Scripted(fault)), verification(Scripted(Verdict(1.0)), name="other"))
    assert [event["name"] for event in fed(run, talk(), ending())] == ["other"]
    assert "answer" in caplog.text


def test_an_unavailable_verifier_is_retried() -> None:
    verifier = Scripted(Unavailable("away"), Verdict(1.0))
    assert len(fed(fold_run(verification(verifier), retry_s=30.0), talk(), ending())) == 1
    assert len(verifier.cases) == 2


def test_an_unverifiable_case_is_a_dead_letter() -> None:
    run = fold_run(verification(Scripted(UnverifiableCase("the task's schema is not one"))))
    [letter] = fed(run, talk(), ending())
    assert (letter["topic"], letter["error"]) == ("governed-feedback", "invalid")
    assert letter["reason"] == "verification 'answer': the task's schema is not one"


def test_old_trajectories_are_deleted() -> None:
    added, removed = state_added("trajectory"), state_removed("trajectory", "age")
    run = fold_run(verification(Scripted(Verdict(1.0))))
    fed(run, talk(), ending())
    run.tick(1_760_000_100_000 + 2 * DAY_MS)
    assert run.state.content != {}
    run.tick(1_760_000_100_000 + 4 * DAY_MS)
    assert run.state.content == {}
    assert (state_added("trajectory") - added, state_removed("trajectory", "age") - removed) == (1, 1)


def test_steps_and_ends_of_a_trajectory_have_the_caps_of_label() -> None:
    run = fold_run(verification(Scripted(Verdict(1.0))), max_steps=3, max_feedback=2)
    fed(run, talk(count=2))
    ends = [as_governed(make_feedback("t", number=n, end="terminated", last_step_index=9)) for n in range(3)]
    fed(run, [], *ends[:2])
    before = dict(run.state.content)
    assert before
    fed(run, talk(count=6)[3:], ends[2])
    assert run.state.content == before, "neither the steps from index 3 on nor the third end"


def test_a_verification_file_is_loaded_and_works(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text(
        '{"task_id": "a", "expected": 4}\n\n{"task_id": "b", "expected": ["x", "y"]}\n'
    )
    (tmp_path / "verify.toml").write_text(
        """
        [[verification]]
        name = "answer"
        verifier = "exact"
        extract = "(?s)answered *(.*)"
        expected = "answers.jsonl"
        options = { numbers = true }
        """
    )
    ready = load(tmp_path / "verify.toml", VerifierContext(Settings(), tmp_path))
    steps = talk(task_id="a")
    steps[1]["response"] = new_message(role="assistant", content="answered 4.0")
    [feedback] = fed(fold_run(*ready), steps, ending())
    assert (feedback["value"], feedback["category"]) == (1.0, "equal")


def test_what_never_closes_or_has_no_step_expires() -> None:
    run = fold_run(verification(Scripted(Verdict(1.0))))
    fed(run, talk("open"), ending("no steps"))
    closed = new_trajectory_closed(
        event_id="c", occurred_at_us=1, trajectory_id="gone", reason="idle", last_step_index=2, steps=3, job="label@1"
    )
    run.feed([run.record("closures", closed)])
    day_ms = 24 * 3600 * 1000
    late = run.record("governed-steps", talk("open", count=3)[2], at_ms=1_760_000_100_000 + 2 * day_ms)
    run.feed([late])
    run.tick(1_760_000_100_000 + 4 * day_ms)
    assert {key[1:17] for key in run.state.content if key[:1] == b"h"} == {trajectory_name("default", "open")}
    run.tick(1_760_000_100_000 + 6 * day_ms)
    assert run.state.content == {}


def test_the_oldest_trajectories_make_room_for_new_ones() -> None:
    removed = state_removed("trajectory", "cap")
    run, at_ms = fold_run(verification(Scripted(Verdict(1.0))), max_trajectories=2), 1_760_000_100_000
    for day, name in enumerate(["a", "b", "c", "d", "a"]):  # the oldest gets a step later
        [step, last] = talk(name)
        sent = last if day == 4 else step
        run.feed([run.record("governed-steps", sent, at_ms=at_ms + day * DAY_MS // 4)])
    run.tick(at_ms)
    kept = {key[1:] for key in run.state.content if key.startswith(b"h")}
    assert kept == {trajectory_name("default", name) for name in ("a", "d")}
    assert not run.fold.due(at_ms)
    assert state_removed("trajectory", "cap") - removed == 2
