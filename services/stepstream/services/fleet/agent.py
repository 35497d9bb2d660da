"""Attempt one task: call the model, run its tool calls, score its answer and post the outcome."""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stepstream.config import FleetSettings
from stepstream.services.fleet.environment import Environment, Message, user
from stepstream.services.fleet.gateway_client import (
    STEP_HEADER,
    AttemptLost,
    GatewayClient,
    RecordedFailure,
    RequestRejected,
)
from stepstream.services.fleet.ledger import Attempt
from stepstream.services.fleet.metrics import Metrics
from stepstream.topics.ids import new_event_id, now_us


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt to make."""

    task_id: str
    split: str
    group_id: str | None = None


class Agent:
    """Makes attempts at tasks of one environment; many may run at once."""

    def __init__(
        self,
        client: GatewayClient,
        settings: FleetSettings,
        environment: type[Environment],
        metrics: Metrics,
        stopping: asyncio.Event,
        temperature: float | None = None,
    ) -> None:
        """Prepare the calls' headers; once `stopping` is set, attempts end at their next step."""
        self._client = client
        self._environment = environment
        self._metrics = metrics
        self._stopping = stopping
        self._temperature = settings.temperature if temperature is None else temperature
        self._headers = {
            "x-stepstream-agent": settings.agent,
            "x-stepstream-environment": environment.name,
            "x-stepstream-harness": harness_version(environment),
        }

    async def attempt(self, assignment: Assignment) -> Attempt:
        """Make one attempt, from the task to its accepted feedback, and return its ledger entry.

        An attempt that was abandoned or lost reports no end: the agent reached neither the task's end nor a limit. The
        label job closes it after its idle timeout, without an outcome.

        Raises:
            UnknownTaskError: the environment has no such task.
        """
        environment = self._environment(assignment.task_id)
        attempt = Attempt(
            trajectory_id=new_event_id(),
            task_id=assignment.task_id,
            split=assignment.split,
            group_id=assignment.group_id,
            started_at_us=now_us(),
        )
        try:
            await self._work(environment, attempt)
        except asyncio.CancelledError:  # the fleet's shutdown time is over; the ledger still needs the entry
            attempt.status, attempt.unsure = "abandoned", True
        except AttemptLost as error:
            attempt.status, attempt.unsure, attempt.error = "lost", error.unsure, str(error)
        attempt.ended_at_us = now_us()
        self._metrics.count_attempt(attempt)
        return attempt

    async def _work(self, environment: Environment, attempt: Attempt) -> None:
        messages = [user(environment.first_message)]
        outcome = 0.0
        end = "truncated"
        try:
            while attempt.steps < environment.max_steps:
                if self._stopping.is_set():
                    attempt.status, attempt.error = "abandoned", "the fleet was stopped"
                    return
                message = await self._step(environment, attempt, messages)
                if not message.get("tool_calls"):
                    outcome, end = environment.answer(message.get("content") or ""), "terminated"
                    break
                messages += tool_round(environment, message)
        except RequestRejected as error:
            attempt.error = str(error)  # the agent's own fault, for example a context that is too long
        await self._post_feedback(attempt, {"name": "outcome", "value": outcome}, end)
        attempt.outcome, attempt.end = outcome, end

    async def _step(self, environment: Environment, attempt: Attempt, messages: list[Message]) -> Message:
        headers = self._headers | {
            "x-stepstream-trajectory": attempt.trajectory_id,
            STEP_HEADER: str(attempt.steps),
            "x-stepstream-task": attempt.task_id,
            "x-stepstream-split": attempt.split,
        }
        if attempt.group_id is not None:
            headers["x-stepstream-group"] = attempt.group_id
        try:
            completion = await self._client.complete(messages, environment.tools, headers, self._temperature)
        except (RequestRejected, RecordedFailure):
            attempt.steps += 1
            raise
        attempt.steps += 1
        self._metrics.steps.inc()
        choice = completion["choices"][0]
        add_versions(attempt, choice.get("weight_versions") or ())
        message: Message = choice["message"]
        return message

    async def _post_feedback(self, attempt: Attempt, signal: dict[str, Any], end: str) -> None:
        event_id = new_event_id()
        target = {"trajectory_id": attempt.trajectory_id, "event_id": event_id, "source": "environment"}
        ending = {"ends_trajectory": end, "last_step_index": attempt.steps - 1}
        await self._client.post_feedback(target | signal | ending)
        attempt.feedback.append(event_id)


def tool_round(environment: Environment, message: Message) -> list[Message]:
    """Run the tools that a message calls; return the message and their answers."""
    calls = []
    answers = []
    for call in message.get("tool_calls") or ():
        if call["type"] != "function":
            continue
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        calls.append({"id": call["id"], "type": "function", "function": {"name": name, "arguments": arguments}})
        result = environment.call(name, tool_input(arguments))
        answers.append({"role": "tool", "tool_call_id": call["id"], "content": result.text})
    return [{"role": "assistant", "content": message.get("content"), "tool_calls": calls}, *answers]


def tool_input(arguments: str) -> str:
    """Return the argument `input` of a tool call, or the whole text if it is not JSON with that argument."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    argument = parsed.get("input") if isinstance(parsed, dict) else None
    return argument if isinstance(argument, str) else arguments


def add_versions(attempt: Attempt, spans: Iterable[Mapping[str, Any]]) -> None:
    """Extend the attempt's range of policy versions by those of a completion's spans."""
    for span in spans:
        version = span["version"]
        attempt.version_min = version if attempt.version_min is None else min(attempt.version_min, version)
        attempt.version_max = version if attempt.version_max is None else max(attempt.version_max, version)


def harness_version(environment: type[Environment]) -> str:
    """Return a name for the harness: the environment and a digest of its tools and step limit."""
    parts = json.dumps([environment.name, environment.tools, environment.max_steps], sort_keys=True)
    return f"{environment.name}@{hashlib.sha256(parts.encode()).hexdigest()[:12]}"
