"""Test the choice of a harness version, and its application to the requests of each protocol."""

from typing import Any
from urllib.parse import parse_qsl

import pytest
from harness_records import HarnessRecords

from stepstream.services.apply_harness import tool_versions, with_harness
from stepstream.services.gateway import harness
from stepstream.services.gateway.harness import UNCHANGED, HarnessChooser
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ModelProtocol
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.responses.protocol import RESPONSES
from stepstream.topics.events import (
    Harness,
    new_harness,
    new_harness_example,
    new_harness_tool,
    new_message,
    new_tool_call,
)


def test_a_trajectory_keeps_its_version_until_that_is_taken_back() -> None:
    table = HarnessRecords()
    chooser = HarnessChooser(table)

    def choose(name: str, before: str | None = None) -> str | None:
        found = chooser.choose("t", "a", name, before)
        return found and found["version"]

    assert choose("one") is None
    table.set("v1", "stable", 1)
    assert (choose("one"), choose("one", UNCHANGED)) == ("v1", None)
    assert chooser.choose("other tenant", "a", "one", None) is None
    assert chooser.choose("t", "other agent", "one", None) is None
    table.set("v2", "canary", 2, share=1.0)
    assert (choose("new"), choose("one", "v1")) == ("v2", "v1")
    table.set("v3", "stable", 3)
    assert choose("one", "v1") == "v1"
    table.set("v2", "retired", 4)
    assert (choose("new", "v2"), choose("newer")) == ("v3", "v3")


def test_agents_that_callers_invent_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "AGENTS", 3)
    table = HarnessRecords()
    scans = 0

    def items() -> dict[str, Any]:
        nonlocal scans
        scans += 1
        return dict(table.records)

    monkeypatch.setattr(table, "items", items)
    chooser = HarnessChooser(table)
    table.set("v1", "stable", 1)
    for number in range(10):
        chooser.choose("t", f"invented {number}", "one", None)
        found = chooser.choose("t", "a", "one", None)
        assert found is not None
        assert found["version"] == "v1"
    assert scans == 11  # the agent in use stays
    chooser.choose("t", "invented 0", "one", None)
    assert scans == 12


HARNESS = new_harness(
    event_id="",
    occurred_at_us=0,
    tenant="t",
    agent="a",
    version="v",
    instructions="Use the tools.",
    model="other",
    examples=[
        new_harness_example(
            messages=[
                new_message(role="user", content="2 + 2?"),
                new_message(
                    role="assistant", tool_calls=[new_tool_call(call_id="c1", name="add", arguments='{"a":2,"b":2}')]
                ),
                new_message(role="tool", content="4", tool_call_id="c1"),
                new_message(role="assistant", content="It is 4."),
            ]
        )
    ],
    tools=[new_harness_tool(name="broken", enabled=False), new_harness_tool(name="add", description="Adds.")],
)
FUNCTIONS = [{"name": name, "description": "d"} for name in ("add", "broken", "other")]
REQUESTS: dict[str, tuple[ModelProtocol, dict[str, Any]]] = {
    "chat": (
        CHAT,
        {
            "messages": [{"role": "system", "content": "Old."}, {"role": "user", "content": "3 + 3?"}],
            "tools": [{"type": "function", "function": each} for each in FUNCTIONS],
            "tool_choice": {"type": "function", "function": {"name": "broken"}},
        },
    ),
    "anthropic": (
        ANTHROPIC,
        {
            "system": "Old.",
            "messages": [{"role": "user", "content": "3 + 3?"}],
            "max_tokens": 10,
            "tools": FUNCTIONS,
            "tool_choice": {"type": "tool", "name": "broken"},
        },
    ),
    "responses": (
        RESPONSES,
        {
            "instructions": "Old.",
            "input": "3 + 3?",
            "tools": [{"type": "function", **each} for each in FUNCTIONS],
            "tool_choice": {"type": "function", "name": "broken"},
        },
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_model_gets_the_harness_in_each_protocol(name: str) -> None:
    protocol, request = REQUESTS[name]
    before = repr(request)
    changed = with_harness(protocol.name, request | {"model": "m"}, HARNESS)
    assert repr(request) == before
    read = protocol.read(changed)
    assert [(message["role"], message["content"]) for message in read.messages] == [
        ("system", "Use the tools."),
        ("user", "2 + 2?"),
        ("assistant", ""),
        ("tool", "4"),
        ("assistant", "It is 4."),
        ("user", "3 + 3?"),
    ]
    [call] = read.messages[2]["tool_calls"]
    assert (call["name"], call["arguments"].replace(" ", "")) == ("add", '{"a":2,"b":2}')
    tools = [tool.get("function", tool) for tool in changed["tools"]]
    assert [(tool["name"], tool["description"]) for tool in tools] == [("add", "Adds."), ("other", "d")]
    assert "tool_choice" not in changed
    assert read.model == "other"


def test_a_harness_of_tools_alone_leaves_messages_and_model() -> None:
    _, request = REQUESTS["chat"]
    plain: Harness = {**HARNESS, "instructions": None, "examples": [], "model": None}
    changed = with_harness("chat", request | {"model": "m"}, plain)
    assert (changed["messages"], changed["model"]) == (request["messages"], "m")
    only = request | {"tools": request["tools"][1:2], "tool_choice": "required"}
    assert {"tools", "tool_choice"}.isdisjoint(with_harness("chat", only, plain))


@pytest.mark.parametrize("protocol", ["chat", "anthropic", "responses"])
@pytest.mark.parametrize("part", [None, 3, "x", [None], {"a": 1}])
def test_a_malformed_request_stays_for_the_upstream_to_reject(protocol: Any, part: Any) -> None:
    request = {"messages": part, "input": part, "tools": part}
    with_harness(protocol, request, HARNESS)


def test_a_continued_response_gets_no_examples_twice() -> None:
    request = {"previous_response_id": "r", "input": "go on"}
    assert with_harness("responses", request, HARNESS)["input"] == "go on"


def turns(question: str, answer: str) -> Any:
    return new_harness_example(
        messages=[new_message(role="user", content=question), new_message(role="assistant", content=answer)]
    )


@pytest.mark.parametrize("name", REQUESTS)
def test_a_conversation_gets_the_examples_most_similar_to_its_first_request(name: str) -> None:
    examples = [turns("Which capital has Peru?", "Lima"), turns("7 + 3 + 8?", "18"), turns("3 + 9?", "12")]
    harness: Harness = {**HARNESS, "instructions": None, "examples": examples, "examples_shown": 2}
    protocol, request = REQUESTS[name]

    def seen(part: dict[str, Any]) -> list[str]:
        read = protocol.read(with_harness(protocol.name, request | part, harness))
        return [message["content"] for message in read.messages if message["role"] != "system"]

    field = "input" if name == "responses" else "messages"
    assert seen({})[:4] == ["7 + 3 + 8?", "18", "3 + 9?", "12"]
    later = [
        {"role": "user", "content": "Name the capital of Chile, please"},
        {"role": "assistant", "content": "Santiago"},
        {"role": "user", "content": "3 + 9 is what?"},
    ]
    assert seen({field: later[:1]})[2:4] == ["Which capital has Peru?", "Lima"]
    assert seen({field: later})[:4] == seen({field: later[:1]})[:4]  # for the whole trajectory


def test_pinned_versions_of_offered_tools_are_named_for_the_agent() -> None:
    tools = [
        new_harness_tool(name="search", version="1"),
        new_harness_tool(name="get\r\nx: y", version="2 & 3"),
        new_harness_tool(name="described", description="Adds."),
        new_harness_tool(name="disabled", version="4", enabled=False),
    ]
    text = tool_versions({**HARNESS, "tools": tools})
    assert parse_qsl(text) == [("search", "1"), ("get\r\nx: y", "2 & 3")]
    assert text.isascii()
    assert text.isprintable()
    assert tool_versions({**HARNESS, "tools": tools[2:]}) == ""
