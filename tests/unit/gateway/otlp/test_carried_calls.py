"""A span of a call that the gateway carried belongs to the gateway's step, and so do its evaluations."""

from pathlib import Path
from typing import Any

import pytest
from hand_made_traces import AGENT, CHAT, TRACE, answer, assembled, span

from stepstream.services.gateway.context.carried_calls import CarriedCalls, call_ids
from stepstream.services.gateway.otlp.assembly import Assembler
from stepstream.services.gateway.otlp.span_index import Owner, SpanIndex, Subject
from stepstream.services.gateway.otlp.spans import Event

RESPONSE = "chatcmpl-0123456789abcdef"


@pytest.mark.parametrize("names", [call_ids(RESPONSE, ""), call_ids("", TRACE, "c"), call_ids("", TRACE, "h")])
def test_a_carried_call_belongs_to_the_gateways_step(tmp_path: Path, names: list[str]) -> None:
    carrying, receiving = CarriedCalls(tmp_path), CarriedCalls(tmp_path)
    carrying.put("default", names, "session-1", 4)
    carrying.put("other", call_ids(RESPONSE, TRACE, "c", "h", "d"), "of another tenant", 7)
    call = span("c", "a", 1, a=CHAT, gen_ai__response__id=RESPONSE, gen_ai__output__messages=answer("four"))
    call.events = [Event("gen_ai.evaluation.result", 9 * 10**9, {"gen_ai.evaluation.name": "relevance"})]
    own = span("d", "a", 5, a=CHAT, gen_ai__output__messages=answer("mine"))
    assembler = Assembler("test/1", SpanIndex(100, "count", receiving))
    spans = span("a", "", 0, 9, a=AGENT), call, span("h", "c", 1, name="POST"), own
    steps, (feedback,) = assembled(*spans, assembler=assembler)
    by_text = {step["response"]["content"]: step for step in steps}
    assert (by_text["four"]["trajectory_id"], by_text["four"]["step_index"]) == ("session-1", 4)
    assert by_text["mine"]["trajectory_id"] == TRACE
    assert (feedback["trajectory_id"], feedback["step_index"]) == ("session-1", 4)
    assert by_text["four"]["call_ids"] == [f"response:{RESPONSE}", f"span:{TRACE}/c", f"span:{TRACE}/h"]
    carrying.close()
    receiving.close()


@pytest.mark.parametrize(("trajectory", "found"), [("t" * 64, ("t" * 64, 3)), ("t" * 65, None)])
def test_a_call_is_known_to_all_processes_of_the_folder(tmp_path: Path, trajectory: str, found: Any) -> None:
    one = CarriedCalls(tmp_path)
    one.put("acme", ["response:a", "span:b/c"], trajectory, 3)
    other = CarriedCalls(tmp_path)
    assert other.find("acme", ["span:b/c"]) == found
    assert other.find("acme", ["span:x/y", "response:a"]) == found
    assert other.find("else", ["span:b/c"]) is None
    assert CarriedCalls().find("acme", ["span:b/c"]) is None
    one.close()
    other.close()


def test_a_process_that_found_no_calls_finds_the_first_one(tmp_path: Path) -> None:
    one, other = CarriedCalls(tmp_path), CarriedCalls(tmp_path)
    assert other.find("acme", ["span:b/c"]) is None
    one.put("acme", ["span:b/c"], "t", 3)
    assert other.find("acme", ["span:b/c"]) == ("t", 3)
    one.close()
    other.close()


def test_an_id_that_two_calls_have_names_neither(tmp_path: Path) -> None:
    carried = CarriedCalls(tmp_path)
    one, two = call_ids(RESPONSE, TRACE, "h1"), call_ids(RESPONSE, TRACE, "h2")
    carried.put("default", one, "a", 0)
    carried.put("default", one, "a", 0)
    assert carried.find("default", call_ids(RESPONSE, "")) == ("a", 0)
    for _ in range(2):
        carried.put("default", two, "b", 0)
        assert carried.find("default", call_ids(RESPONSE, "")) is None
    assert (carried.find("default", one), carried.find("default", two)) == (("a", 0), ("b", 0))
    carried.put("other", two, "b", 0)
    assert carried.find("other", call_ids(RESPONSE, "")) == ("b", 0)
    carried.close()


def test_an_evaluation_of_an_id_that_two_responses_have_is_about_neither() -> None:
    index, owner = SpanIndex(100), Owner("default", None, "train")
    index.add_step(TRACE, "a", ("t", 0, owner), RESPONSE)
    index.add_step(TRACE, "a", ("t", 0, owner), RESPONSE)
    assert index.subject_of_response("default", RESPONSE) == Subject("t", 0, owner=owner)
    for span_id, step_index in (("b", 1), ("c", 2), ("c", 2)):
        index.add_step(TRACE, span_id, ("t", step_index, owner), RESPONSE)
        assert index.subject_of_response("default", RESPONSE) is None


def test_a_short_id_names_no_call() -> None:
    assert call_ids("cmpl-1", "", "") == []
