"""Decorated functions are recorded as steps, tool calls and rewards."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stepstream import sdk

CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{}"}}


def completion(message: dict[str, Any]) -> Any:
    """A reply, as a client's object."""
    reply = {"choices": [{"message": message, "finish_reason": "stop"}], "model": "m-1"}
    return SimpleNamespace(model_dump=lambda: reply)


async def test_decorated_functions_are_steps_with_their_return_value_as_response(sink: sdk.MemorySink) -> None:
    class Agent:
        @sdk.step(model="m", temperature=0.5)
        def ask(self, tools: str, messages: list[Any]) -> Any:
            assert sdk.current_step() is not None
            return completion({"role": "assistant", "content": None, "tool_calls": [CALL]})

        @sdk.step
        async def later(self, question: str) -> str:
            await asyncio.sleep(0)
            return f"answer to {question}"

    @sdk.step
    def sets_response(messages: str) -> str:
        current = sdk.current_step()
        assert current is not None
        current.response("set inside", finish_reason="length")
        return "something else"

    @sdk.step
    def fails(messages: str) -> str:
        raise KeyError(messages)

    with sdk.trajectory() as t:
        Agent().ask("none", [{"role": "user", "content": "q"}])
        await Agent().later("why")
        sets_response("q")
        with pytest.raises(KeyError):
            fails("q")
        assert t.last_index == 3
    first, second, third, fourth = sink.of("steps")
    assert (first["model"], first["sampling"]["temperature"], first["messages"][0]["content"]) == ("m-1", 0.5, "q")
    assert first["response"]["tool_calls"][0]["call_id"] == "c1"
    assert (second["messages"][0]["content"], second["response"]["content"]) == ("why", "answer to why")
    assert (third["response"]["content"], third["finish_reason"]) == ("set inside", "length")
    assert (fourth["error"], fourth["response"]["content"]) == ("KeyError", "")
    assert sets_response.__name__ == "sets_response"


async def test_the_return_value_of_a_decorated_function_is_a_reward(sink: sdk.MemorySink) -> None:
    @sdk.reward("outcome")
    def grade(answer: str) -> float | None:
        return 1.0 if answer else None

    @sdk.reward("format", level="step", source="test")
    async def check(answer: str) -> bool:
        return answer == "x"

    with sdk.trajectory() as t:
        with t.step():
            assert await check("x")
        assert not await check("y")
        assert (grade("x"), grade("")) == (1.0, None)
    rewards = [(entry["name"], entry["value"], entry["step_index"], entry["source"]) for entry in sink.of("feedback")]
    assert rewards[:-1] == [
        ("format", 1.0, 0, "test"),
        ("format", 0.0, 0, "test"),
        ("outcome", 1.0, None, "environment"),
    ]


def test_outside_a_trajectory_decorated_functions_only_run(
    sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    @sdk.step
    def ask(messages: str) -> str:
        return messages

    @sdk.step
    def words(messages: str) -> Iterator[str]:
        yield messages

    @sdk.reward("x")
    def grade() -> float:
        return 1.0

    with sdk.tool_use("search") as use:
        use.result = 1
    assert (ask("q"), list(words("q")), grade(), sink.events) == ("q", ["q"], 1.0, [])
    assert caplog.text.count("is a generator") == 1
