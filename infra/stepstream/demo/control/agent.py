"""Run the agents of the fleet: a script of the user's, which knows the gateway's address, the tools and no more.

It calls the gateway with the stock OpenAI client and lets it apply the agent's harness. It reads the state of the world
from a file, again and again, until SIGTERM. Production tasks are attempted once, without consent to train; while the
world says so, training tasks are attempted by groups, with consent. It shares two cores with the whole stack, so it
sends and reads JSON instead of the client's models, over aiohttp.
"""

import argparse
import asyncio
import random
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import uvloop
from httpx2 import Response
from openai import APIError, AsyncOpenAI, DefaultAioHttpClient

from stepstream.demo.control.world import FAMILIES, TOOLS, Family, World, task_of
from stepstream.demo.control.world_file import read_world
from stepstream.services.fleet.agent import tool_input

Tools = list[dict[str, Any]]
"""Definitions of tools, as a call sends them."""
MAX_STEPS = 3
MIX = {"value": 0.2, "pick": 0.5, "code": 0.3}
"""Shares of the families in production."""
TRAINING_TOOLS = (TOOLS, TOOLS, TOOLS[1:])
"""Tools that the groups of the training fleet are offered in turn: production may lose the first one."""
READ_S = 0.5
"""Interval at which the world is read again."""
PAUSE_S = 0.5
"""Time after a failed call before the next attempt."""
TRAINING_SHARE = 0.45
"""Share of the workers that serve the training fleet while it runs: about as much as the learner trains on."""


class Desk:
    """All agents of the fleet. Create it inside the event loop."""

    def __init__(self, url: str, model: str, agent: str, world_file: Path, seed: int, group_size: int) -> None:
        client = DefaultAioHttpClient()
        self._client = AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, http_client=client)
        self._model = model
        self._agent, self._group_size = agent, group_size
        self._file, self._world, self._read_at = world_file, World(), 0.0
        self._random = random.Random(f"desk/{seed}")
        self._seed, self._number = seed, 0
        self._training = {family: self._training_tasks(family) for family in FAMILIES}
        self._stopping = False

    def stop(self) -> None:
        """Start no more attempts."""
        self._stopping = True

    async def run(self, concurrency: int) -> None:
        """Attempt tasks, `concurrency` at a time, until `stop`."""
        await asyncio.gather(*(self._work(number < TRAINING_SHARE * concurrency) for number in range(concurrency)))
        await self._client.close()

    async def _work(self, may_train: bool) -> None:
        while not self._stopping:
            training, tools = self._current_world().training, TOOLS
            if may_train and training is not None:
                task, group, tools = next(self._training[training])
                headers = {"x-stepstream-group": group, "x-stepstream-consent": "train"}
            else:
                task, headers = self._production_task(), {"x-stepstream-consent": "analyse"}
            try:
                await self._attempt(task, headers, tools)
            except APIError:
                await asyncio.sleep(PAUSE_S)  # the trajectory ends by the label job's timeout

    def _current_world(self) -> World:
        now = time.monotonic()
        if now - self._read_at >= READ_S:
            self._world, self._read_at = read_world(self._file), now
        return self._world

    def _production_task(self) -> str:
        self._number += 1
        [family] = self._random.choices(FAMILIES, [MIX[family] for family in FAMILIES])
        return f"{family}/production/{self._seed}-{self._number}"

    def _training_tasks(self, family: Family) -> Iterator[tuple[str, str, Tools]]:
        for number in range(10**9):
            group = str(uuid.uuid4())
            for _ in range(self._group_size):
                yield f"{family}/training/{self._seed}-{number}", group, TRAINING_TOOLS[number % len(TRAINING_TOOLS)]

    async def _attempt(self, task_id: str, headers: dict[str, str], tools: Tools) -> None:
        """Make one attempt and report its outcome, and the tools that failed.

        Raises:
            APIError: the gateway rejects a call, or does not answer.
        """
        task, trajectory = task_of(task_id), str(uuid.uuid4())
        names = {"trajectory": trajectory, "agent": self._agent, "environment": "desk", "task": task_id}
        headers = {f"x-stepstream-{name}": value for name, value in names.items()} | headers
        headers["x-stepstream-apply-harness"] = "true"
        messages: list[Any] = [{"role": "user", "content": task.question}]
        failures: list[dict[str, Any]] = []
        steps, text = 0, ""
        while steps < MAX_STEPS:
            message = await self._complete(messages, headers | {"x-stepstream-step": str(steps)}, tools)
            steps += 1
            if not message.get("tool_calls"):
                text = message.get("content", "")
                break
            messages.append(message)
            for call in message["tool_calls"]:
                function = call["function"]
                result = task.call(function["name"], tool_input(function["arguments"]), self._current_world())
                content = "?" if result.error else result.text
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
                if result.error:
                    failure = {"name": "tool_error", "tool_call_id": call["id"], "category": result.text}
                    failures.append({"trajectory_id": trajectory, "source": "environment", **failure})
        outcome = {
            "trajectory_id": trajectory,
            "name": "outcome",
            "value": float(text == task.answer(self._current_world())),
            "source": "environment",
            "ends_trajectory": "terminated",
            "last_step_index": steps - 1,
        }
        thanks = {"trajectory_id": trajectory, "name": "thanks", "value": float(text.endswith("!")), "source": "user"}
        consent = {"x-stepstream-consent": headers["x-stepstream-consent"]}
        await self._client.post(
            "/feedback", cast_to=object, body=[*failures, thanks, outcome], options={"headers": consent}
        )

    async def _complete(self, messages: list[Any], headers: dict[str, str], tools: Tools) -> dict[str, Any]:
        """Return the message that the model answers, without fields that are null.

        Raises:
            APIError: the gateway rejects the call, or does not answer.
        """
        content = orjson.dumps({"model": self._model, "max_tokens": 16, "tools": tools, "messages": messages})
        reply = await self._client.post(
            "/chat/completions", content=content, cast_to=Response, options={"headers": headers}
        )
        message: dict[str, Any] = orjson.loads(reply.content)["choices"][0]["message"]
        return {name: value for name, value in message.items() if value is not None}


async def main(arguments: argparse.Namespace) -> None:
    """Run the fleet until SIGTERM."""
    desk = Desk(arguments.url, arguments.model, arguments.agent, arguments.world, arguments.seed, arguments.group_size)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, desk.stop)
    await desk.run(arguments.concurrency)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("url", "model", "agent"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--world", type=Path, required=True)
    for option, default in (("seed", 0), ("group-size", 8), ("concurrency", 24)):
        parser.add_argument(f"--{option}", type=int, default=default)
    uvloop.run(main(parser.parse_args()))
