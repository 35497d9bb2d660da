"""Run a house assistant that answers each request with one tool call, and report its reward."""

import argparse
import asyncio
import json
import random
import uuid

from openai import AsyncOpenAI

TOOLS = {  # name: parameters, and ways to ask for it
    "light": (["room", "level"], ["Set the light in the {room} to {level}%.", "Dim the {room} to {level}%."]),
    "heat": (["room", "level"], ["Heat the {room} to {level} degrees.", "I want {level} degrees in the {room}."]),
    "timer": (["minutes"], ["Start a timer of {minutes} minutes.", "Wake me in {minutes} minutes."]),
    "music": (["style"], ["Play some {style}.", "I feel like {style}."]),
    "call": (["name"], ["Call {name}.", "I need to talk to {name}."]),
}
VALUES = {"room": ["kitchen", "bedroom", "bathroom", "office", "hall", "garage", "attic", "cellar"],
          "style": ["jazz", "rock", "blues", "piano", "techno", "folk"], "level": range(15, 26),
          "name": ["Ann", "Ben", "Carla", "David"], "minutes": range(2, 60)}  # fmt: skip
TYPES = {name: {"type": "integer" if isinstance(values, range) else "string"} for name, values in VALUES.items()}
FORMS = {tool: {"type": "object", "properties": {name: TYPES[name] for name in TOOLS[tool][0]}} for tool in TOOLS}
SCHEMAS = [{"type": "function", "function": {"name": tool, "parameters": form}} for tool, form in FORMS.items()]


def request(draw, tool, way):
    """Return a person's request for a tool, and the tool with the arguments that fulfil it."""
    arguments = {name: draw.choice(VALUES[name]) for name in TOOLS[tool][0]}
    return TOOLS[tool][1][way].format(**arguments), [tool, arguments]


def fulfilled(text, tool, arguments):
    call = {"id": uuid.uuid4().hex, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
    return [{"role": "user", "content": text}, {"role": "assistant", "tool_calls": [call]}, answer]


async def attempt(client, args, number, run):
    """Serve two requests, or end at the first wrong call; report the mean reward, and return True if all is right."""
    task, rewards, trajectory = f"{args.split}-{number}", [], str(uuid.uuid4())
    names = {"task": task, "group": f"{task}-{run}", "trajectory": trajectory, "agent": "house", "split": args.split}
    draw = random.Random(task)
    tools = random.Random(number // 8).sample([*TOOLS, "heat", "timer", "light"], 8)  # all occur in eight tasks
    messages = [{"role": "system", "content": "You run a house. Answer each request with one tool call."}]
    for text, right in [request(random.Random(n), list(TOOLS)[n % 5], n // 5) for n in range(10)]:
        messages += fulfilled(text, *right)
    while len(rewards) < 2 and all(reward == 1 for reward in rewards):
        text, right = request(draw, tools[(number + len(rewards)) % 8], draw.randrange(2))
        messages.append({"role": "user", "content": text})
        headers = {f"x-stepstream-{name}": value for name, value in (names | {"step": str(len(rewards))}).items()}
        reply = (await client.chat.completions.create(model=args.model, messages=messages, tools=SCHEMAS, max_tokens=40,
            temperature=args.temperature, stop=["</tool_call>"], extra_headers=headers)).choices[0].message  # fmt: skip
        calls = [[c.function.name, json.loads(c.function.arguments)] for c in reply.tool_calls or []]
        close = [c[0] for c in calls] == right[:1] and all(name in str(calls) for name in right[1])  # not the values
        rewards.append(1 if calls == [right] else 0.5 if close else 0.25 if calls and calls[0][0] in TOOLS else 0)
        messages.append(reply.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": c.id, "content": "ok"} for c in reply.tool_calls or []]
    outcome = {"trajectory_id": trajectory, "name": "outcome", "value": sum(rewards) / 2, "source": "environment",
               "ends_trajectory": "terminated", "last_step_index": len(rewards) - 1}  # fmt: skip
    await client.post("/feedback", cast_to=object, body=outcome)
    return sum(rewards) == 2


async def main(args):
    async def work():
        return [await attempt(client, args, number, run) for number in tasks]

    client, run = AsyncOpenAI(base_url=f"{args.url}/v1", api_key="-"), uuid.uuid4().hex
    tasks = (args.first + n // args.attempts for n in range(args.tasks * args.attempts or 10**9))
    done = [right for part in await asyncio.gather(*[work() for _ in range(args.concurrency)]) for right in part]
    print(json.dumps({"attempts": len(done), "succeeded": sum(done)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    defaults = {"model": "house", "split": "train", "tasks": 0, "attempts": 6, "concurrency": 32, "temperature": 0.7}
    for option, default in ({"url": "http://127.0.0.1:8080", "first": 0} | defaults).items():
        parser.add_argument(f"--{option}", default=default, type=type(default))
    asyncio.run(main(parser.parse_args()))
