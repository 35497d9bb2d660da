"""Test the subject and owner of `gen_ai.evaluation.result` on spans of every role, and without a span."""

from typing import Any

import pytest
from hand_made_traces import AGENT, CHAT, DEFAULTS, RESOURCE, TOOL, TRACE, answer, assembled, span

from stepstream.services.gateway.otlp.assembly import Assembler
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.spans import Event, Log, Resource, Span
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.topics.events import Feedback

SAID = {"gen_ai.evaluation.name": "relevance", "gen_ai.evaluation.score.value": 0.8}
Expected = tuple[str, int | None, str | None]


def judged(on: Span, **more: Any) -> Span:
    """The span, with an evaluation on it."""
    own = {key.replace("__", "."): value for key, value in more.items()}
    on.events = [Event("gen_ai.evaluation.result", 9 * 10**9, SAID | own)]
    return on


def later(span_id: str, trace_id: str = TRACE, resource: Resource = RESOURCE, **more: Any) -> Log:
    own = {key.replace("__", "."): value for key, value in more.items()}
    return Log(trace_id, span_id, "gen_ai.evaluation.result", 9, SAID | own, None, resource)


def subject_of(feedback: Feedback) -> Expected:
    return feedback["trajectory_id"], feedback["step_index"], feedback["tool_call_id"]


def test_an_evaluation_of_a_call_arrives_with_it_or_later() -> None:
    assembler = Assembler("test/1", SpanIndex(100))
    more = {"gen_ai__evaluation__score__label": "relevant", "gen_ai__evaluation__explanation": "to the point"}
    call = judged(span("c", "", 1, a=CHAT, gen_ai__response__id="resp-1"), **more)
    _, (feedback,) = assembled(call, assembler=assembler)
    assert subject_of(feedback) == (TRACE, 0, None)
    assert (feedback["name"], feedback["value"]) == ("relevance", 0.8)
    assert (feedback["category"], feedback["comment"], feedback["source"]) == ("relevant", "to the point", "judge")
    _, (late,) = assembled(logs=(later("", "", gen_ai__response__id="resp-1"),), assembler=assembler)
    assert subject_of(late) == (TRACE, 0, None)
    assert late["event_id"] != feedback["event_id"]
    _, (by_span,) = assembled(logs=(later("c"),), assembler=assembler)
    assert subject_of(by_span) == (TRACE, 0, None)


def work(on: str = "", **outer: Any) -> list[Span]:
    """Two agents, the second a tool of the first, whose calls name a conversation; an evaluation on one span."""
    chat = CHAT | {"gen_ai.conversation.id": "chat-7"}
    spans = [
        span("r", "", 0, 30, **outer),
        span("b", "r", 0, 30, a=AGENT, gen_ai__agent__name="boss"),
        span("c", "b", 1, a=chat, gen_ai__output__messages=answer("", ("t1", "research"))),
        span("t", "b", 3, 9, a=TOOL, gen_ai__tool__call__id="t1"),
        span("u", "t", 3, 9, a=TOOL, gen_ai__tool__call__id="t1"),
        span("s", "u", 4, 8, a=AGENT, gen_ai__agent__name="researcher"),
        span("d", "s", 5, a=CHAT),
        span("w", "s", 6, 7),
        span("e", "b", 10, a=chat),
        span("v", "c", 1),
        span("o", "r", 20),
    ]
    return [judged(each) if each.span_id == on else each for each in spans]


WHERE: list[tuple[str, Expected]] = [
    ("c", ("chat-7", 0, None)),  # a call
    ("v", ("chat-7", 0, None)),  # something inside a call
    ("e", ("chat-7", 1, None)),
    ("t", ("chat-7", 0, "t1")),  # a tool
    ("u", ("chat-7", 0, "t1")),  # its server's side
    ("b", ("chat-7", None, None)),  # an agent whose calls are in a conversation
    ("r", ("chat-7", None, None)),  # what is around it
    ("o", ("chat-7", None, None)),  # an evaluator of its own beside it
    ("s", (f"{TRACE}-s", None, None)),  # a child agent
    ("d", (f"{TRACE}-s", 0, None)),
    ("w", (f"{TRACE}-s", None, None)),  # something beside the child's calls
]


@pytest.mark.parametrize(("on", "where"), WHERE)
def test_the_subject_of_each_kind_of_span(on: str, where: Expected) -> None:
    steps, (feedback,) = assembled(*work(on))
    assert subject_of(feedback) == where
    assert feedback["trajectory_id"] in {step["trajectory_id"] for step in steps}


@pytest.mark.parametrize(("on", "where"), [row for row in WHERE if row[0] in "cetbsd"])
def test_a_later_evaluation_finds_the_subject_of_its_span(on: str, where: Expected) -> None:
    assembler = Assembler("test/1", SpanIndex(100))
    assembled(*work(), assembler=assembler)
    _, (by_log,) = assembled(logs=(later(on),), assembler=assembler)
    assert subject_of(by_log) == where
    _, (by_span,) = assembled(judged(span("x", on, 40)), assembler=assembler)
    assert subject_of(by_span) == where


def test_a_named_trajectory_is_the_subject() -> None:
    name = {"stepstream__trajectory_id": "mine"}
    _, (feedback,) = assembled(span("a", "", 0, 9, a=AGENT, **name), judged(span("c", "a", 1, a=CHAT)))
    assert subject_of(feedback) == ("mine", 0, None)
    _, (feedback,) = assembled(judged(span("a", "", 0, 9, a=AGENT, **name)), span("c", "a", 1, a=CHAT))
    assert subject_of(feedback) == ("mine", None, None)
    _, (feedback,) = assembled(judged(span("x", "", 0), **name, stepstream__step_index=3))
    assert subject_of(feedback) == ("mine", 3, None)
    _, (feedback,) = assembled(logs=(later("", "", gen_ai__conversation__id="chat-8"),))
    assert subject_of(feedback) == ("chat-8", None, None)


def test_an_evaluation_without_a_known_subject_is_no_feedback() -> None:
    _, feedback = assembled(logs=(later("", "", gen_ai__response__id="resp-of-another-process"),))
    assert feedback == []


def test_only_the_tenant_of_a_response_can_evaluate_it() -> None:
    assembler = Assembler("test/1", SpanIndex(100))

    def subjects_of(tenant: str, trace: Trace) -> list[Any]:
        records = assembler.records(trace, Defaults(tenant, "train", "agent"))
        return [subject_of(each.record) for each in records if each.topic == "feedback"]

    for number, tenant in enumerate(("tenant-a", "tenant-b")):
        call = Trace(f"{number:032x}")
        call.add(span("c", "", 1, a=CHAT, gen_ai__response__id="r", gen_ai__conversation__id=f"chat-{number}"))
        assert subjects_of(tenant, call) == []
    loose = Trace("")
    loose.add_log(later("", "", gen_ai__response__id="r"))
    assert subjects_of("tenant-a", loose) == [("chat-0", 0, None)]
    assert subjects_of("tenant-b", loose) == [("chat-1", 0, None)]
    assert subjects_of("others", loose) == []


def test_the_owner_is_the_named_person_or_the_steps_owner() -> None:
    def of(feedback: Feedback) -> tuple[str | None, str]:
        return feedback["user"], feedback["consent"]

    assert DEFAULTS.consent == "train"
    assembler = Assembler("test/1", SpanIndex(100))
    owner: dict[str, Any] = {"user__id": "maria", "stepstream__consent": "none"}
    for on in ("c", "t", "b", "s"):
        _, (feedback,) = assembled(*work(on, **owner), assembler=assembler)
        assert of(feedback) == ("maria", "none")
        _, (late,) = assembled(logs=(later(on, resource=Resource({})),), assembler=assembler)
        assert of(late) == ("maria", "none")
    own: dict[str, Any] = {"enduser__id": "otto", "stepstream__consent": "analyse"}
    _, (feedback,) = assembled(span("c", "", 1, a=CHAT, **owner), logs=(later("c", **own),))
    assert of(feedback) == ("otto", "analyse")
    assembled(span("c", "", 1, a=CHAT, gen_ai__response__id="resp", **owner), assembler=assembler)
    _, (loose,) = assembled(logs=(later("", "", gen_ai__response__id="resp"),), assembler=assembler)
    assert of(loose) == ("maria", "none")
    _, (alone,) = assembled(judged(span("x", "", 1, **owner), gen_ai__conversation__id="chat"))
    assert of(alone) == ("maria", "none")
    _, (unclear,) = assembled(judged(span("c", "", 1, a=CHAT), stepstream__consent="perhaps"))
    assert of(unclear) == (None, "none")  # an unknown consent allows nothing


def test_evaluations_of_one_moment_have_different_ids() -> None:
    logs = [later("", "", gen_ai__conversation__id=name) for name in ("chat-1", "chat-2")]
    _, feedback = assembled(logs=tuple(logs))
    assert len({each["event_id"] for each in feedback}) == 2
