"""Test shadow replay over HTTP, the scores of answers, and the search with a reflection model."""

from typing import Any

import orjson
import pytest
from recorded_attempts import PARENT, Model, attempt, coded_view, copies_similar_example
from scripted_chat import ScriptedChat

from stepstream.config import OptimiseSettings
from stepstream.jobs.verifiers.base import Case, Source, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.specification import Verification, VerificationConfig
from stepstream.services.control.optimise.gepa_search import GepaSearch, seed_texts, with_texts
from stepstream.services.control.optimise.prompts import is_comparable, own_prompt
from stepstream.services.control.optimise.propose import search
from stepstream.services.control.optimise.records import Budget, CannotSearch, Meter
from stepstream.services.control.optimise.reflection import ReflectionModel
from stepstream.services.control.optimise.scoring import Scorer
from stepstream.services.control.optimise.shadow import ReplayUnavailable, ShadowReplay
from stepstream.topics.events import (
    Harness,
    Message,
    new_harness_example,
    new_harness_tool,
    new_message,
    new_sampling,
    new_tool_call,
)

BUDGET = Budget(calls=400, tokens=1_000_000)
TOOLS = orjson.dumps([{"type": "function", "function": {"name": "search", "description": "Searches."}}]).decode()


def said(text: str, *calls: tuple[str, str]) -> Message:
    made = [new_tool_call(call_id=str(i), name=name, arguments=arguments) for i, (name, arguments) in enumerate(calls)]
    return new_message(role="assistant", content=text, tool_calls=made)


class Wants:
    """Verifier: the text must be the expected one."""

    source: Source = "verifier"
    reads_trajectory = False

    def verify(self, case: Case) -> list[Verdict]:
        if not case.expected:
            raise UnverifiableCase("nothing is expected")
        return [Verdict(float(case.observed == case.expected["expected"]))]


def verification(**fields: Any) -> Verification:
    config = VerificationConfig.model_validate({"name": "outcome", "verifier": "wants"} | fields)
    return Verification(config, Wants(), {"family0/0": {"expected": "seven"}})


def settings(gateway: str = "http://127.0.0.1:9", **fields: Any) -> OptimiseSettings:
    return OptimiseSettings.model_validate({"gateway_url": gateway, "timeout_s": 5.0} | fields)


def test_a_verifier_scores_answers_and_recorded_successes_score_what_it_does_not_know() -> None:
    known, other = attempt(0, "a", "seven"), attempt(1, "b", "Eight  Nine", success=True)
    scorer = Scorer([known, other, attempt(2, "c", "x", success=False)], [verification()], "outcome")
    assert [scorer.score(known, said(text)).score for text in ("seven", "7", "")] == [1.0, 0.0, 0.0]
    assert [scorer.score(other, said(text)).score for text in ("eight nine", "nine")] == [1.0, 0.0]
    assert scorer.score(attempt(2, "c", "x"), said("x")).score is None
    assert scorer.score(other, said("nine")).feedback == "Wrong. A right answer: Eight  Nine"


def test_another_verification_than_the_one_of_success_does_not_score() -> None:
    known = attempt(0, "a", "SEVEN")
    assert Scorer([known], [verification(name="style")], "outcome").score(known, said("seven")).score == 1.0  # compared
    assert Scorer([], [verification(name="style")], "outcome").score(known, said("seven")).score is None


def test_tool_calls_are_compared_by_name_and_arguments_and_not_taken_for_a_final_answer() -> None:
    first = attempt(0, "a", "", response=said("", ("get", '{"x": 1, "y": 2}')))
    scorer = Scorer([first], [verification()], "outcome")
    assert scorer.score(first, said("", ("get", '{"y":2,"x":1}'))).score == 1.0
    assert scorer.score(first, said("", ("get", '{"y":2}'))).score == 0.0
    by_argument = Scorer([], [verification(reads="tool_arguments", pointer="/x")])
    assert by_argument.score(first, said("", ("get", '{"x":"seven"}'))).score == 1.0


def test_a_replay_repeats_the_call_and_is_marked() -> None:
    view = coded_view()
    one = attempt(5, "question", "yes", tool_definitions=TOOLS, sampling=new_sampling(temperature=0.25, max_tokens=9))
    harness: Harness = {
        **PARENT,
        "instructions": "New.",
        "tools": [new_harness_tool(name="search", description="Finds.")],
    }
    with (
        ScriptedChat(lambda request: "yes") as server,
        ShadowReplay(settings(server.url, gateway_key="secret"), Scorer([one])) as replay,
    ):
        meter = Meter(BUDGET)
        [trial] = replay(harness, [one], meter)
        [sent], [headers] = server.requests, server.headers
        assert len(replay(PARENT, view.attempts[:20], meter)) == 20
    assert (trial.score, meter.calls, meter.tokens) == (1.0, 21, 210)
    assert [message["content"] for message in sent["messages"]] == ["New.", "question"]
    assert sent["tools"][0]["function"]["description"] == "Finds."
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("m", 0.25, 9)
    assert headers["x-stepstream-consent"] == "none"
    assert headers["x-stepstream-agent"] == "shadow:a"
    assert (headers["x-stepstream-split"], headers["authorization"]) == ("eval", "Bearer secret")


def test_a_rejected_prompt_is_the_candidates_fault_and_an_outage_is_not() -> None:
    one = attempt(5, "question", "yes")
    answers: list[str | int] = [503, "yes", 400, 401]
    with (
        ScriptedChat(lambda request: answers.pop(0)) as server,
        ShadowReplay(settings(server.url), Scorer([one])) as replay,
    ):
        assert [trial.score for trial in replay(PARENT, [one], Meter(BUDGET))] == [1.0]  # after the 503
        assert [trial.score for trial in replay(PARENT, [one], Meter(BUDGET))] == [0.0]
        with pytest.raises(ReplayUnavailable, match="401"):
            replay(PARENT, [one], Meter(BUDGET))
    with ShadowReplay(settings(timeout_s=0.01), Scorer([one])) as replay, pytest.raises(ReplayUnavailable):
        replay(PARENT, [one], Meter(BUDGET))


def test_prompts_lose_the_examples_that_a_harness_added() -> None:
    example = new_harness_example(messages=[new_message(role="user", content="q"), said("a")])
    other = new_harness_example(messages=[new_message(role="user", content="r"), said("b")])
    harness: Harness = {**PARENT, "examples": [example, other], "examples_shown": 1}
    system, question = new_message(role="system", content="s"), new_message(role="user", content="real")
    assert own_prompt([system, *other["messages"], question], harness) == [system, question]
    assert own_prompt([*other["messages"], *example["messages"], question], harness) == [question]
    assert own_prompt([system, question], harness) == [system, question]
    assert own_prompt([system, *other["messages"]], None) == [system, *other["messages"]]
    versions: dict[str, Harness] = {"v": {**PARENT, "instructions": "Other."}, "w": harness}
    assert [is_comparable(name, versions, PARENT) for name in ("v", "w", "unknown")] == [False, True, True]


def obeys(request: dict[str, Any]) -> str:
    """Answer rightly only under instructions that give the codes."""
    if "code-" not in request["messages"][0]["content"]:
        return "no idea"
    return f"code-{'abcde'.index(request['messages'][-1]['content'].split()[5][0])}"


def test_gepa_rewrites_instructions_that_a_replay_confirms() -> None:
    view = coded_view()
    rewritten = "Answer code-0 for apple, code-1 for breeze, code-2 for castle, code-3 for dragon, code-4 for ember."
    with ScriptedChat(lambda request: f"```\n{rewritten}\n```") as server:
        model = Model(view, obeys)
        reflection = settings(reflection_url=server.url, reflection_model="big", reflection_key="k")
        meter = Meter(BUDGET)
        result = search(reflection, model, view, {}, PARENT, ["gepa"], meter)
    record = result.record
    assert record is not None
    assert (record["instructions"], record["state"], record["proposer"]) == (rewritten, "proposed", "optimise/gepa")
    assert record["headroom"] is not None
    assert (record["headroom"]["name"], record["headroom"]["value"]) == ("headroom", 1.0)
    assert result.calls == len(model.asked) + len(server.requests) <= 400
    assert server.requests[0]["model"] == "big"
    assert server.headers[0]["authorization"] == "Bearer k"
    question = server.requests[0]["messages"][0]["content"]
    assert "Old." in question  # the instructions in force
    assert "A right answer: code-" in question


def test_gepa_proposes_nothing_if_no_rewriting_helps() -> None:
    view = coded_view()
    with ScriptedChat(lambda request: "```\nTry harder.\n```") as server:
        reflection = settings(reflection_url=server.url, reflection_model="big")
        result = search(reflection, Model(view, obeys), view, {}, PARENT, ["gepa"], Meter(BUDGET))
    assert result.record is None
    assert result.reason == "gepa: no gain is confirmed"
    assert result.calls <= 400


def test_texts_of_a_candidate_are_instructions_and_descriptions_of_offered_tools() -> None:
    attempts = [attempt(i, "q", "a", tool_definitions=TOOLS) for i in range(3)]
    texts = seed_texts(attempts, PARENT)
    assert texts == {"instructions": "Old.", "tool:search": "Searches."}
    assert with_texts(PARENT, texts, texts)["version"] == with_texts(PARENT, texts, dict(texts))["version"]
    assert with_texts(PARENT, texts, texts)["instructions"] is None
    changed = with_texts(PARENT, texts, texts | {"tool:search": "Finds orders by number."})
    assert changed["tools"] == [new_harness_tool(name="search", description="Finds orders by number.")]
    disabled: Harness = {**PARENT, "tools": [new_harness_tool(name="search", enabled=False)]}
    assert "tool:search" not in seed_texts(attempts, disabled)


def test_a_search_tries_the_next_optimiser_and_names_all_reasons() -> None:
    view = coded_view()
    with pytest.raises(CannotSearch, match="set optimise"):
        ReflectionModel(settings())
    result = search(settings(), Model(view, obeys), view, {}, PARENT, ["examples", "gepa"], Meter(BUDGET))
    assert result.record is None
    assert result.reason == (
        "examples: no gain is confirmed; gepa: no reflection model: set optimise.reflection_url and "
        "optimise.reflection_model"
    )


def test_a_proposal_that_exists_is_not_proposed_again() -> None:
    view = coded_view()
    model = Model(view, copies_similar_example)
    first = search(settings(), model, view, {}, PARENT, (), Meter(BUDGET)).record
    assert first is not None
    assert "nearest of" in first["reason"]
    again = search(settings(), model, view, {first["version"]: first}, PARENT, (), Meter(BUDGET))
    assert again.record is None
    assert "exists in state proposed" in again.reason


def test_gepa_refuses_a_budget_without_a_round() -> None:
    view = coded_view()
    with pytest.raises(CannotSearch, match="raise"):
        GepaSearch(Model(view, obeys), lambda prompt, meter: "").propose(view, PARENT, Budget(60, 1000))
