"""Run a house assistant that answers each request with one tool call, and report its reward."""

import argparse
import asyncio
import json
import random
import uuid
from itertools import count

from openai import AsyncOpenAI, OpenAIError

TOOLS = {  # name: parameters, and ways to ask for it
    "light": (["room", "percent"], ["Lamp in the {room} at {percent}%.", "Dim the {room} to {percent}%."]),
    "heat": (["room", "degrees"], ["I want {degrees} degrees in the {room}.", "Warm the {room} to {degrees}."]),
    "timer": (["minutes"], ["The eggs need {minutes} minutes.", "Wake me in {minutes} minutes."]),
    "music": (["room", "style"], ["Some {style} for the {room}.", "I feel like {style} in the {room}."]),
    "call": (["name"], ["I need to talk to {name}.", "Get {name} on the line."]),
}
VALUES = {"room": ["kitchen", "bedroom", "bathroom", "office", "hall", "garage", "attic", "cellar"],
          "style": ["jazz", "rock", "blues", "piano", "techno", "folk"],
          "name": ["Ann", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Hugo"],
          "percent": range(5, 100, 5), "degrees": range(15, 26), "minutes": range(2, 60)}  # fmt: skip
TYPES = {name: {"type": "integer" if isinstance(values, range) else "string"} for name, values in VALUES.items()}
SCHEMAS = [{"type": "function", "function": {"name": tool, "parameters": {
    "type": "object", "properties": {name: TYPES[name] for name in names}}}}
    for tool, (names, _) in TOOLS.items()]  # fmt: skip


def request(draw):
    """Return a person's request, and the tool and arguments that fulfil it."""
    tool = draw.choice(list(TOOLS))
    arguments = {name: draw.choice(VALUES[name]) for name in TOOLS[tool][0]}
    return draw.choice(TOOLS[tool][1]).format(**arguments), [tool, arguments]


def round_of(text, tool, arguments):
    call = {"id": f"call-{uuid.uuid4().hex}", "type": "function", "function": {"name": tool, "arguments": arguments}}
    return [{"role": "user", "content": text}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "ok"}]  # fmt: skip


async def attempt(client, args, **names):
    """Serve two requests, or end at the first wrong call; report the share of right calls and return it."""
    draw, trajectory, right = random.Random(names["task"]), str(uuid.uuid4()), 0
    names |= {"agent": "house-agent", "trajectory": trajectory, "split": args.split}
    messages = [{"role": "system", "content": "You run a house. Answer each request with one tool call."}]
    for text, (tool, arguments) in [request(random.Random(f"example {n}")) for n in range(4)]:
        messages += round_of(text, tool, json.dumps(arguments))
    for step in range(2):  # noqa: B007
        text, expected = request(draw)
        reply = await client.chat.completions.create(
            model=args.model, messages=[*messages, {"role": "user", "content": text}], tools=SCHEMAS, max_tokens=48,
            temperature=args.temperature, stop=["</tool_call>"],
            extra_headers={f"x-stepstream-{name}": value for name, value in names.items()})  # fmt: skip
        calls = [call.function for call in reply.choices[0].message.tool_calls or []]
        if [[call.name, json.loads(call.arguments)] for call in calls] != [expected]:
            break
        right += 1
        messages += round_of(text, calls[0].name, calls[0].arguments)
    await client.post("/feedback", cast_to=object, body={
        "trajectory_id": trajectory, "name": "outcome", "value": right / 2, "source": "environment",
        "ends_trajectory": "terminated", "last_step_index": step})  # fmt: skip
    return right / 2


async def main(args):
    client, numbers, results = AsyncOpenAI(base_url=f"{args.url}/v1", api_key="none", timeout=600), count(), []
    run = uuid.uuid4().hex[:8]

    async def work():
        while (number := next(numbers)) < args.tasks * args.attempts or not args.tasks:
            task = f"{args.split}-{number // args.attempts}"
            try:
                results.append(await attempt(client, args, task=task, group=f"{task}-{run}"))
            except OpenAIError as error:
                results.append(error)

    try:
        await asyncio.gather(*[work() for _ in range(args.concurrency)])
    finally:
        failed = sum(isinstance(result, OpenAIError) for result in results)
        print(json.dumps({"attempts": len(results), "succeeded": results.count(1.0), "failed": failed}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in [("url", "http://127.0.0.1:8080"), ("model", "house"), ("split", "train"), ("tasks", 0),
                          ("attempts", 8), ("concurrency", 64), ("temperature", 1.0)]:  # fmt: skip
        parser.add_argument(f"--{name}", default=default, type=type(default))
    asyncio.run(main(parser.parse_args()))
