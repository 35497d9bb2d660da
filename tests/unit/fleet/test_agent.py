"""Test how agents read a tool call's arguments, the harness version, and what unfinished attempts report."""

import asyncio
from typing import Any

import pytest

from stepstream.config import FleetSettings
from stepstream.services.fleet.agent import Agent, Assignment, harness_version, tool_input
from stepstream.services.fleet.gateway_client import RecordedFailure
from stepstream.services.fleet.lookup import Lookup


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a+b"}', "a+b"), ('{"input": 3}', '{"input": 3}'), ("a+b", "a+b"), ("[1]", "[1]"), ("{}", "{}")],
)
def test_tool_input_is_the_argument_or_the_whole_text(arguments: str, text: str) -> None:
    assert tool_input(arguments) == text


def test_the_harness_version_depends_on_the_tools() -> None:
    class Fewer(Lookup):
        tools = Lookup.tools[:1]

    assert harness_version(Lookup) == harness_version(Lookup) != harness_version(Fewer)


class Client:
    """Answers one call with a tool call and stops the fleet; then fails. Notes the posted feedback."""

    def __init__(self, stopping: asyncio.Event | None = None) -> None:
        self.posted: list[dict[str, Any]] = []
        self._stopping = stopping

    async def complete(self, *_: Any) -> dict[str, Any]:
        if self._stopping is None:
            raise RecordedFailure("the worker was killed")
        self._stopping.set()
        function = {"name": "get", "arguments": '{"input": "a"}'}
        return {"choices": [{"message": {"tool_calls": [{"id": "c", "type": "function", "function": function}]}}]}

    async def post_feedback(self, item: dict[str, Any]) -> None:
        self.posted.append(item)


class Metrics:
    """Counts nothing."""

    steps = type("Counter", (), {"inc": lambda self: None})()

    def count_attempt(self, attempt: Any) -> None:
        pass


@pytest.mark.parametrize("status", ["abandoned", "lost"])
async def test_an_attempt_that_the_agent_did_not_end_reports_no_end(status: str) -> None:
    """`truncated` without an outcome would count as the agent's time-out: a failure."""
    stopping = asyncio.Event()
    client = Client(stopping if status == "abandoned" else None)
    task = Assignment(next(Lookup.tasks(0, "train")), "train")
    agent: Any = Agent(client, FleetSettings(), Lookup, Metrics(), stopping)  # type: ignore[arg-type]
    attempt = await agent.attempt(task)
    assert (attempt.status, attempt.steps, attempt.unsure, attempt.outcome) == (status, 1, False, None)
    assert attempt.error in {"the fleet was stopped", "the worker was killed"}
    assert (client.posted, attempt.feedback, attempt.end) == ([], [], None)
