"""Messages, calls and results of any shape are converted to steps."""

import asyncio
from typing import Any

import numpy as np
import pytest

from stepstream import sdk
from stepstream.sdk.messages import message_of

QUESTION = {"role": "user", "content": "what is a + c?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"name": "a"}'}}


@sdk.tool
def get(name: str) -> int:
    return {"a": 4}[name]


@sdk.tool(name="fetch")
async def get_later(name: str) -> int:
    await asyncio.sleep(0)
    return {"a": 4}[name]


class Box:
    @sdk.tool
    def look(self, where: str = "in") -> dict[str, object]:
        return {"found": {1, 2} and where}


class Silent:
    def __repr__(self) -> str:
        raise ValueError("no looks")


cycle: list[Any] = []
cycle.append(cycle)


@pytest.mark.parametrize(
    ("raw", "role", "content", "call"),
    [
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, "assistant", "", "c f {}"),
        ({"type": "function_call_output", "call_id": "c", "output": "4"}, "tool", "4", ""),
        ({"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, "user", "hi", ""),
        (
            {"type": "ai", "content": "", "tool_calls": [{"name": "f", "args": {}, "id": "c"}]},
            "assistant",
            "",
            "c f {}",
        ),
        ({"type": "human", "content": "hi"}, "user", "hi", ""),
        ({"role": "assistant", "content": None, "refusal": "I will not"}, "assistant", "I will not", ""),
        ({"what": 1}, "user", '{"what":1}', ""),
    ],
)
def test_messages_of_other_apis_are_converted(raw: Any, role: str, content: str, call: str) -> None:
    message = message_of(raw)
    calls = [f"{one['call_id']} {one['name']} {one['arguments']}" for one in message["tool_calls"]]
    assert (message["role"], message["content"], calls) == (role, content, [call] if call else [])
    assert message["tool_call_id"] == ("c" if role == "tool" else None)


def test_objects_of_client_libraries_are_converted(sink: sdk.MemorySink) -> None:
    from openai.types.chat import ChatCompletion

    message = {"role": "assistant", "content": "hi", "tool_calls": []}
    reply = ChatCompletion.model_validate(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m-1",
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": message},
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        }
    )
    with sdk.trajectory() as t:
        with t.step([QUESTION], model="m") as s:
            s.completion(reply)
        with t.step(
            [QUESTION, reply.choices[0].message, {"role": "user", "content": [{"type": "text", "text": "go"}]}]
        ):
            pass
    first, second = sink.of("steps")
    assert (first["response"]["content"], first["model"], first["usage_prompt_tokens"]) == ("hi", "m-1", 3)
    assert (second["prompt_shared_messages"], second["messages"][0]["content"]) == (2, "go")


def test_custom_and_legacy_function_calls_are_converted(sink: sdk.MemorySink) -> None:
    custom = {"id": "1", "type": "custom", "custom": {"name": "run", "input": "1+1"}}
    old = {"role": "assistant", "content": None, "function_call": {"name": "get", "arguments": "{}"}}
    with sdk.trajectory() as t, t.step([old, {"role": "function", "name": "get", "content": "4"}]) as s:
        s.response({"role": "assistant", "content": None, "tool_calls": [custom]})
    [step] = sink.of("steps")
    request, answered = step["messages"]
    assert [(c["call_id"], c["name"], c["arguments"]) for c in request["tool_calls"]] == [("get", "get", "{}")]
    assert (answered["role"], answered["tool_call_id"]) == ("tool", "get")
    [call] = step["response"]["tool_calls"]
    assert (call["call_id"], call["name"], call["arguments"]) == ("1", "run", '{"input":"1+1"}')


def test_results_are_matched_to_calls_of_a_later_response(sink: sdk.MemorySink) -> None:
    other = {"id": "c2", "type": "function", "function": {"name": "get", "arguments": '{ "name": "b" }'}}
    with sdk.trajectory() as t, t.step() as s:
        s.tool_call("get", {"name": "b"}, error=KeyError("b"))
        get("a")
        s.response("two calls", tool_calls=[CALL, other])
        s.tool_call("get", {"name": "z"}, result="one too many")
    calls = sink.of("steps")[0]["response"]["tool_calls"]
    assert [(c["call_id"], c["result"], c["error"]) for c in calls[:2]] == [("c1", "4", None), ("c2", None, "KeyError")]
    assert calls[2]["result"] == "one too many"


async def test_tools_without_a_response_become_calls_of_the_step(sink: sdk.MemorySink) -> None:
    with sdk.trajectory() as t, t.step() as s:
        await get_later("a")
        s.tool_call("search", {"q": 1}, result={"hits": []}, duration_ms=3)
        Box().look()
    calls = sink.of("steps")[0]["response"]["tool_calls"]
    assert [(c["name"], c["arguments"], c["result"]) for c in calls] == [
        ("fetch", '{"name":"a"}', "4"),
        ("search", '{"q":1}', '{"hits":[]}'),
        ("look", "{}", '{"found":"in"}'),
    ]
    assert all(call["call_id"] for call in calls)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (2**70, "1180591620717411303424"),
        ({"n": 2**70, "at": {1}}, '{"n":1180591620717411303424,"at":"{1}"}'),
        ({("a", 1): 2}, "{('a', 1): 2}"),
        ("cut \ud83d", "cut \ufffd"),
        (["\ud83d\ude00", "\ud83d"], '["\U0001f600","\ufffd"]'),
        (cycle, "[[...]]"),
        (np.float32(0.5), "0.5"),
        (Silent(), '"<Silent>"'),
    ],
)
def test_any_result_of_a_tool_is_recorded_as_text(sink: sdk.MemorySink, result: Any, text: str) -> None:
    @sdk.tool
    def look() -> Any:
        return result

    with sdk.trajectory() as t, t.step([{"role": "user", "content": result}], tools=[print]) as s:
        assert look() is result
        s.response("done", finish_reason=None, model=None)
    [step] = sink.of("steps")
    [call] = step["response"]["tool_calls"]
    assert (call["result"], step["messages"][0]["content"], step["finish_reason"]) == (text, text, "")
    assert "built-in function print" in step["tool_definitions"]
