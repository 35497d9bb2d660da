"""Run an agent of OpenAI's Agents SDK: `openai_agents_sdk.py API WAY`; reads GATEWAY_… and QUESTION.

API: responses, streamed (Responses too) or chat. WAY: alone; or with a second agent: delegating to it under its own
trajectory name, nesting it as a tool without a name, or handing-off.
"""

import asyncio
import json
import os
import sys

from agents import (
    Agent,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    Runner,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from tools import lookup, refund

HEADERS = json.loads(os.environ["GATEWAY_HEADERS"])


@function_tool
async def ask_refunds(context: RunContextWrapper[None], request: str) -> str:
    """Asks the colleague who refunds."""
    parent = HEADERS["x-stepstream-trajectory"]
    child = {
        "x-stepstream-trajectory": f"{parent}/refunds",
        "x-stepstream-parent": parent,
        "x-stepstream-parent-step": str(context.usage.requests - 1),
    }
    settings = RunConfig(model_settings=ModelSettings(extra_headers=child))
    return (await Runner.run(refunder(), request, run_config=settings)).final_output


def refunder() -> Agent:
    return Agent(name="refunds", model="demo", instructions="Refund.", tools=[function_tool(refund)])


def front(way: str) -> Agent:
    look = function_tool(lookup)
    if way == "handing-off":
        return Agent(name="front", model="demo", instructions="Help.", tools=[look], handoffs=[refunder()])
    if way == "nesting":
        other = refunder().as_tool("ask_refunds", "Asks the colleague who refunds.")
    else:
        other = function_tool(refund) if way == "alone" else ask_refunds
    return Agent(name="front", model="demo", instructions="Help.", tools=[look, other])


async def main(api: str, way: str) -> None:
    set_tracing_disabled(True)
    set_default_openai_api("chat_completions" if api == "chat" else "responses")
    async with AsyncOpenAI(
        base_url=os.environ["GATEWAY_URL"], api_key=os.environ["GATEWAY_KEY"], default_headers=HEADERS
    ) as client:
        set_default_openai_client(client, use_for_tracing=False)
        if api == "streamed":
            result = Runner.run_streamed(front(way), os.environ["QUESTION"])
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(front(way), os.environ["QUESTION"])
        print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
