"""The next-state judge: asked once about a step, by what its user said next; its answer read strictly."""

from typing import Any

import orjson
import pytest
from fold_harness import FoldRun, MemoryChanges, MemoryState
from scripted_judge import reply, served
from stream_records import as_governed, make_steps

from stepstream.config import JudgeSettings
from stepstream.jobs.governance.trajectory_policy import NoPolicies, TrajectoryPolicy
from stepstream.jobs.judging.fold import JOB, JudgeFold
from stepstream.jobs.judging.llm import JudgeClient
from stepstream.jobs.judging.next_state import RUBRIC, judged_step, score_of, step_question
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.jobs.verifiers.base import NoVerdict
from stepstream.topics.events import Step, new_message

DAY_US = 24 * 3600 * 1_000_000


def talk(name: str = "t", count: int = 2, **fields: Any) -> list[Step]:
    """Steps in which the user answers each response."""
    steps = make_steps(name, count, **fields)
    for index, step in enumerate(steps):
        step["messages"] = [new_message(role="user", content=f"said {index}")]
        step["response"] = new_message(role="assistant", content=f"answered {index}")
    return steps


class Scripted:
    """A judge without a network."""

    def __init__(self, *scores: float | None) -> None:
        self.scores, self.asked = list(scores), [""][:0]

    def score(self, asked: str) -> float | None:
        self.asked.append(asked)
        return self.scores.pop(0) if self.scores else 0.5


class Refused(NoPolicies):
    def of(self, *_: Any) -> TrajectoryPolicy:
        return TrajectoryPolicy(consent="none")


def judge_run(
    judge: Scripted,
    policies: Any = None,
    state: MemoryState | None = None,
    rejection: str | None = None,
    **only: list[str],
) -> FoldRun:
    run = FoldRun(JOB, None, state or MemoryState())  # type: ignore[arg-type]
    wanted: dict[str, list[str]] = {"agents": [], "tenants": []} | only
    run.fold = JudgeFold(judge, run.codec, policies or NoPolicies(), rejection=lambda: rejection, **wanted)
    return run


def fed(run: FoldRun, steps: list[Any]) -> list[Any]:
    return [event for _, _, event in run.feed([run.record("governed-steps", step) for step in steps])]


def test_the_users_next_message_scores_the_step_before() -> None:
    judge = Scripted(0.75)
    steps = talk(user="ann")
    [feedback] = fed(judge_run(judge), [as_governed(step) for step in steps])
    about = ("trajectory_id", "step_index", "name", "value", "source", "user", "consent")
    assert tuple(feedback[field] for field in about) == ("t", 0, "next_state", 0.75, "judge", "ann", "train")
    assert [orjson.loads(asked) for asked in judge.asked] == [
        {"request": "said 0", "response": {"text": "answered 0", "tools": []}, "reaction": "said 1"}
    ]


def test_a_judge_that_may_not_count_casts_a_shadow() -> None:
    [feedback] = fed(judge_run(Scripted(), rejection="not calibrated"), [as_governed(step) for step in talk()])
    assert (feedback["name"], feedback["comment"]) == ("shadow.next_state", "not calibrated")


def test_a_redelivered_or_newly_governed_step_is_asked_about_once() -> None:
    judge = Scripted()
    run = judge_run(judge)
    governed: list[Any] = [as_governed(step) for step in talk()]
    [first] = fed(run, governed)
    newer = governed[1] | {"event_id": "newer", "governed": governed[1]["governed"] | {"policy_version": 2}}
    assert fed(run, [*governed, newer]) == []
    assert len(judge.asked) == 1
    # And if its state is lost, the feedback is the same event.
    assert fed(judge_run(Scripted()), governed) == [first]


def test_while_state_is_rebuilt_nobody_is_asked() -> None:
    judge = Scripted()
    run = judge_run(judge)
    changes, out = MemoryChanges(run.state), Outputs(JOB, run.codec, lambda call: call())  # type: ignore[arg-type]
    out.replaying = True
    steps = [as_governed(step) for step in talk(count=3)]
    for record in [run.record("governed-steps", step) for step in steps[:2]]:
        run.fold.apply(record, run.codec.decode(record.topic, record.value), changes, out)
    run.state.write(changes)
    assert judge.asked == []
    [feedback] = fed(run, steps[2:])
    assert feedback["step_index"] == 1


def test_what_no_user_answered_is_not_judged() -> None:
    judge = Scripted()
    tools = make_steps("tools", 3)
    roots = [step | {"prompt_shared_messages": 0, "prompt_shared_tokens": 0} for step in talk("roots", 3)]
    assert fed(judge_run(judge), [as_governed(step) for step in [*tools, *roots]]) == []
    assert judge.asked == []


def test_a_branch_is_about_the_step_that_it_continues() -> None:
    steps = talk(count=3)
    steps[2]["prompt_shared_step"] = 0
    assert [judged_step(step) for step in steps] == [None, 0, 0]
    repeated = steps[1] | {"messages": [steps[0]["response"], *steps[1]["messages"]]}
    assert judged_step(repeated) == 0


@pytest.mark.parametrize("only", [{"agents": ["other"]}, {"tenants": ["other"]}])
def test_only_the_chosen_are_judged(only: dict[str, Any]) -> None:
    steps = [as_governed(step) for step in talk()]
    judge = Scripted()
    run = judge_run(judge, **only)
    assert fed(run, steps) == []
    assert run.state.content == {}
    assert len(fed(judge_run(judge, agents=["agent"], tenants=["default"]), steps)) == 1


def test_consent_is_asked_for_before_anything_leaves() -> None:
    judge = Scripted()
    steps = talk(consent="analyse")
    [feedback] = fed(judge_run(judge), [as_governed(step) for step in steps])
    assert feedback["consent"] == "analyse"
    assert fed(judge_run(judge, Refused()), [as_governed(step) for step in steps]) == []
    erased = [as_governed(step) | {"seal_key": "k"} for step in steps]
    assert fed(judge_run(judge), erased) == []
    assert len(judge.asked) == 1


def test_a_user_may_answer_after_a_weekend() -> None:
    judge, (asked, answered) = Scripted(), talk()
    answered["occurred_at_us"] += 3 * DAY_US
    run = judge_run(judge)
    assert fed(run, [as_governed(asked)]) == []
    run.tick((asked["occurred_at_us"] + 3 * DAY_US) // 1000)
    assert len(fed(run, [as_governed(answered)])) == 1


def test_old_days_are_dropped() -> None:
    run = judge_run(Scripted(None))
    steps = talk()
    assert fed(run, [as_governed(step) for step in steps]) == []
    run.tick((steps[0]["occurred_at_us"] + 6 * DAY_US) // 1000)
    assert run.state.content == {}


def test_a_long_text_is_cut_in_the_middle() -> None:
    before, step = talk()
    before["response"] = new_message(role="assistant", content="a" * 9_000 + "z" * 9_000)
    text = orjson.loads(step_question(before, step))["response"]["text"]
    assert len(text) < 8_100
    assert (text[0], text[-1]) == ("a", "z")


@pytest.mark.parametrize(
    ("content", "score"), [('{"score": 1}', 1.0), ('{"score": -0.25}', -0.25), (' {"score":0}', 0.0)]
)
def test_a_score_is_read(content: str, score: float) -> None:
    assert score_of(reply(content)) == score


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        reply(None),
        reply("good"),
        reply("0.5"),
        reply('{"score": 2}'),
        reply('{"score": true}'),
        reply('{"score": "1"}'),
        reply('{"score": 1, "why": "x"}'),
        reply('{"score": 1} and more'),
        reply("[]"),
    ],
)
def test_what_is_no_score_is_none(answer: bytes) -> None:
    with pytest.raises(NoVerdict):
        score_of(answer)


def client(url: str, cancelled: bool = False, **fields: Any) -> JudgeClient:
    values = {"url": url, "model": "m", "api_key": "k", "per_minute": 1e6, "patience_s": 5.0} | fields
    return JudgeClient(JudgeSettings(**values), lambda: cancelled)


def test_the_judge_is_asked_with_the_rubric_at_temperature_0() -> None:
    with served((200, reply('{"score": 0.5}'))) as (url, seen):
        assert client(url).score("{}") == 0.5
    [(path, authorization, body)] = seen
    assert (path, authorization) == ("/v1/chat/completions", "Bearer k")
    assert (body["model"], body["temperature"], body["messages"][0]["content"]) == ("m", 0, RUBRIC)


def test_a_judge_that_fails_is_asked_again_and_one_that_talks_is_not() -> None:
    with served((503, b""), (200, reply('{"score": 1}'))) as (url, seen):
        assert client(url).score("{}") == 1.0
    assert len(seen) == 2
    with served((200, reply("I think it went well."))) as (url, seen):
        assert client(url).score("{}") is None
    assert len(seen) == 1


def test_a_judge_that_is_away_is_passed_over_after_a_while_and_found_again() -> None:
    with served((500, b""), (500, b""), (200, reply('{"score": 1}'))) as (url, seen):
        asks = client(url, patience_s=0.1)
        assert [asks.score("{}"), asks.score("{}"), asks.score("{}")] == [None, None, 1.0]
    assert len(seen) == 3


def test_who_waits_for_the_judge_can_be_stopped() -> None:
    with pytest.raises(Cancelled):
        client("http://127.0.0.1:9", cancelled=True).score("{}")
