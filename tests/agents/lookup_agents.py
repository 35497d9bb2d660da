"""Run agents of OpenAI's Agents SDK on the demo's lookup task: `lookup_agents.py COUNT`; reads GATEWAY_URL, SESSION."""

import asyncio
import json
import os
import sys

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

TURNS = 5


@function_tool
def get(input: str) -> str:
    """The value of a key."""
    return str("abcdefgh".find(input) + 1)


@function_tool
def calc(input: str) -> str:
    """A calculator for sums."""
    left, _, right = input.partition("+")
    return str(int(left) + int(right)) if left.isdecimal() and right.isdecimal() else "?"


async def attempt(client: AsyncOpenAI, number: int) -> int:
    """Make one attempt; return its number of model calls."""
    model = OpenAIChatCompletionsModel("demo", client)
    headers = {"x-stepstream-trajectory": f"{os.environ['SESSION']}/{number}"}
    settings = RunConfig(model_settings=ModelSettings(extra_headers=headers, max_tokens=32))
    agent = Agent(name="lookup", model=model, tools=[get, calc])
    try:
        result = await Runner.run(agent, "q:a+c", run_config=settings, max_turns=TURNS)
    except MaxTurnsExceeded:
        return TURNS
    return len(result.raw_responses)


async def main(count: int) -> None:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=os.environ["GATEWAY_URL"], api_key="any-key") as client:
        print(json.dumps(await asyncio.gather(*[attempt(client, number) for number in range(count)])))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
