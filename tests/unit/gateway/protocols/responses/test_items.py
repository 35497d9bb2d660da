"""A response repeated in the next request reads as it was recorded, in every client library's form."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from stepstream.services.gateway.protocols.messages import record_message
from stepstream.services.gateway.protocols.responses.items import referable_items
from stepstream.services.gateway.protocols.responses.protocol import RESPONSES, ResponsesProtocol
from stepstream.topics.events import new_sampling

Raw = dict[str, Any]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ANNOTATION = {"type": "url_citation", "url": "https://example.org", "title": "t", "start_index": 0, "end_index": 1}


def response(output: list[Raw], **fields: Any) -> Raw:
    fixed = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return fixed | fields


@st.composite
def output_items(draw: st.DrawFn) -> list[Raw]:
    items: list[Raw] = []
    for index in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["reasoning", "open reasoning", "text", "refusal", "call", "custom", "search"]))
        text = draw(TEXT)
        message = {"type": "message", "id": f"msg_{index:032}", "role": "assistant", "status": "completed"}
        part = {"type": "output_text", "text": text, "annotations": draw(st.sampled_from([[], [ANNOTATION]]))}
        kinds: dict[str, Raw] = {
            "reasoning": {
                "type": "reasoning",
                "id": f"rs_{index:032}",
                "summary": [{"type": "summary_text", "text": text}] * draw(st.integers(0, 2)),
                "encrypted_content": draw(st.sampled_from([None, "gAAA"])),
            },
            "open reasoning": {
                "type": "reasoning",
                "id": f"rs_{index:032}",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": text}],
            },
            "text": message | {"content": [part] * draw(st.integers(0, 2))},
            "refusal": message | {"content": [{"type": "refusal", "refusal": text}]},
            "call": {
                "type": "function_call",
                "id": f"fc_{index:032}",
                "call_id": f"call_{index}",
                "name": "get",
                "arguments": text,
                "status": "completed",
            },
            "custom": {
                "type": "custom_tool_call",
                "id": f"ctc_{index:032}",
                "call_id": f"call_{index}",
                "name": "patch",
                "input": text,
            },
            "search": {
                "type": "web_search_call",
                "id": f"ws_{index:032}",
                "status": "completed",
                "action": {"type": "search", "query": text},
            },
        }
        items.append(kinds[kind])
    return items


def repeated(output: list[Raw], form: str) -> list[Raw]:
    """Return the items as a client sends them back."""
    if form == "unchanged":
        return output
    if form == "by id":
        return [{"type": "item_reference", "id": item["id"]} for item in output]
    if form == "without ids":
        return [{name: value for name, value in item.items() if name not in ("id", "status")} for item in output]
    parsed = Response.model_validate(response(output)).output
    if form == "with all nulls":
        return [item.model_dump(mode="json", by_alias=True) for item in parsed]
    return [item.to_dict(mode="json") for item in parsed]


FORMS = ["unchanged", "by id", "without ids", "with all nulls", "through the models"]


@given(output_items(), st.sampled_from(FORMS), st.sampled_from(["user", "tool", "nothing"]))
def test_a_repeated_response_reads_as_it_was_recorded(output: list[Raw], form: str, then: str) -> None:
    protocol = ResponsesProtocol()
    answer = protocol.answer(response(output))
    recorded = answer.message
    new: dict[str, list[Raw]] = {
        "user": [{"role": "user", "content": "on"}],
        "tool": [{"type": "function_call_output", "call_id": "call_0", "output": "7"}],
        "nothing": [],
    }
    items = [{"role": "user", "content": "go"}, *repeated(output, form), *new[then]]
    known = {item["id"]: item for item in answer.items}
    messages = protocol.read(
        protocol.resolve_references({"instructions": "Be brief.", "input": items}, known.get)
    ).messages
    assert [message["role"] for message in messages[:3]] == ["system", "user", "assistant"]
    assert messages[2] == recorded
    assert len(messages) == 3 + len(new[then])


@given(output_items(), TEXT)
def test_a_translated_call_is_recorded_as_it_reads(output: list[Raw], text: str) -> None:
    protocol = ResponsesProtocol()
    items = [{"role": "user", "content": text}, *[item for item in output if item["type"] != "web_search_call"]]
    items.append({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": text}]})
    request = {"model": "m", "instructions": text, "input": items}
    chat = protocol.translation(request, None)
    assert [record_message(message) for message in chat.request["messages"]] == protocol.read(request).messages


def test_a_request_becomes_a_conversation() -> None:
    request = {
        "model": "m",
        "instructions": "Be brief.",
        "safety_identifier": "p1",
        "user": "other",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 64,
        "stream": True,
        "previous_response_id": "resp_0",
        "input": [
            {
                "role": "developer",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            },
            {
                "role": "user",
                "type": "message",
                "content": [{"type": "input_image", "image_url": "data:x", "detail": None}],
            },
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c0", "name": "get", "arguments": "{}"},
            {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "[]"},
            {"type": "function_call_output", "call_id": "c1", "output": "7"},
            {"type": "custom_tool_call_output", "call_id": "c0", "output": {"n": 8}},
            {"type": "shell_call_output", "call_id": "c2", "output": [], "status": None},
            "stray",
        ],
    }
    read = ResponsesProtocol().read(request)
    assert [(m["role"], m["content"], m["tool_call_id"]) for m in read.messages] == [
        ("system", "Be brief.", None),
        ("developer", "ab", None),
        ("user", '[{"type":"image_url","image_url":{"url":"data:x"}}]', None),
        ("assistant", "", None),
        ("tool", "7", "c1"),
        ("tool", '{"n":8}', "c0"),
        ("tool", '{"call_id":"c2","output":[],"type":"shell_call_output"}', "c2"),
        ("user", "stray", None),
    ]
    answer = read.messages[3]
    assert answer["reasoning"] == "hm"
    assert [(call["call_id"], call["arguments"]) for call in answer["tool_calls"]] == [("c0", "{}"), ("c1", "[]")]
    assert (read.instructions, read.previous_response_id, read.user, read.stream) == (1, "resp_0", "p1", True)
    assert read.sampling == new_sampling(temperature=0.5, top_p=0.9, max_tokens=64)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "summary", "output", "arguments", "id", "text", "format", "name"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING, ANYTHING)
def test_any_request_is_read(instructions: Any, items: Any) -> None:
    ResponsesProtocol().read({"instructions": instructions, "input": items, "model": items})


@pytest.mark.parametrize("bare", [True, False])
def test_known_references_are_replaced_by_their_items(bare: bool) -> None:
    items = {f"{n:032}": {"id": f"{n:032}", "type": "message"} for n in (0, 2)}
    references = [{"id": f"{n:032}"} | ({} if bare else {"type": "item_reference"}) for n in range(3)]
    original = {"model": "m", "input": [*references, "text", {"type": "item_reference", "id": None}]}
    request = RESPONSES.resolve_references(original, items.get)
    first, second = items.values()
    assert request == {"model": "m", "input": [first, references[1], second, "text", original["input"][-1]]}
    for other in ({"input": "text"}, {}, {"input": [{"role": "user", "content": "x"}]}):
        assert RESPONSES.resolve_references(other, items.get) is other


def test_items_with_short_ids_cannot_be_referred_to() -> None:
    assert referable_items([{"id": "msg_1"}, {"id": 24 * "x"}, {"id": None}, "x"]) == [{"id": 24 * "x"}]
