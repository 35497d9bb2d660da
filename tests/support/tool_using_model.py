"""A worker at the network's edge that can use any agent's tools, and remembers what tokens it gave for what."""

import itertools
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from scripted_upstream import EOS, ROLES, ScriptedUpstream, text_ids

FIRST_ORDER = 4711
CONTENT_PIECE = 5


@dataclass
class Given:
    """One answer, as the worker knows it."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprob: float
    """Of each of its tokens, and of no other answer's."""
    content: str
    calls: list[dict[str, Any]]
    counted: bool
    """Whether it said how many tokens these are; a stream says so only where it is asked to."""


class ToolUsingModel(ScriptedUpstream):
    """Uses every tool that it is offered once, in their order and the first twice at once; then it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[float, Given] = {}
        self._numbers = itertools.count(1)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        number = next(self._numbers)
        calls = next_calls(body, number)
        content = "" if calls else f"Done, ticket {number} is closed."
        # Not a round number, and exact in 32 bits.
        counted = not body.get("stream") or bool((body.get("stream_options") or {}).get("include_usage"))
        response_ids = [*text_ids(spelt(content, calls)), EOS]
        given = Given(worker_prompt(body["messages"]), response_ids, -number / 1024, content, calls, counted)
        self.given[given.logprob] = given
        if body.get("stream"):
            return await self._chunks(request, body, given)
        message = {"role": "assistant", "content": content or None} | ({"tool_calls": calls} if calls else {})
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish(given)}
        choice |= captured(given, given.response_ids) | {"weight_versions": self._versions(given)}
        reply = head(body, "chat.completion") | {"choices": [choice], "usage": usage(given)}
        return web.json_response(reply | {"prompt_token_ids": given.prompt_ids})

    async def _chunks(self, request: web.Request, body: dict[str, Any], given: Given) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        deltas = list(pieces(given))
        left = list(given.response_ids)
        for position, delta in enumerate(deltas):
            last = position == len(deltas) - 1
            ids, left = (left, []) if last else (left[:1], left[1:])
            choice = {"index": 0, "delta": delta, "finish_reason": finish(given) if last else None}
            choice |= captured(given, ids) | ({"weight_versions": self._versions(given)} if last else {})
            chunk = head(body, "chat.completion.chunk") | {"choices": [choice]}
            await send(response, chunk | ({"prompt_token_ids": given.prompt_ids} if position == 0 else {}))
        if given.counted:
            await send(response, head(body, "chat.completion.chunk") | {"choices": [], "usage": usage(given)})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _versions(self, given: Given) -> list[dict[str, int]]:
        return [{"version": self.version, "start": 0, "end": len(given.response_ids)}]


async def send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def next_calls(body: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The calls of the first tool that the conversation has not called yet; none once there is no such tool."""
    used = {call["function"]["name"] for message in body["messages"] for call in message.get("tool_calls") or ()}
    tools = [tool["function"] for tool in body.get("tools") or ()]
    for position, tool in enumerate(tools):
        if tool["name"] not in used:
            times = 2 if position == 0 and tool.get("parameters", {}).get("properties") else 1
            return [call(tool, f"call_{number}_{time}", FIRST_ORDER + time) for time in range(times)]
    return []


def call(tool: dict[str, Any], call_id: str, order: int) -> dict[str, Any]:
    properties = tool.get("parameters", {}).get("properties") or {}
    arguments = {
        name: order if schema.get("type") in ("integer", "number") else f"See to order {order}."
        for name, schema in properties.items()
    }
    function = {"name": tool["name"], "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def pieces(given: Given) -> Any:
    """The deltas of a stream: arguments come in pieces that are no JSON by themselves."""
    for index, one in enumerate(given.calls):
        function = one["function"]
        yield {"tool_calls": [one | {"index": index, "function": {"name": function["name"], "arguments": ""}}]}
        half = len(function["arguments"]) // 2
        for part in (function["arguments"][:half], function["arguments"][half:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
    for start in range(0, len(given.content), CONTENT_PIECE):
        yield {"role": "assistant", "content": given.content[start : start + CONTENT_PIECE]}


def spelt(content: str, calls: list[dict[str, Any]]) -> str:
    """An answer's text; how its arguments' JSON looks does not count, as templates write it anew."""
    functions = [one["function"] for one in calls]
    told = [f"<{f['name']} {json.dumps(json.loads(f['arguments'] or '{}'), sort_keys=True)}>" for f in functions]
    return content + "".join(told)


def worker_prompt(messages: list[dict[str, Any]]) -> list[int]:
    """Append-only: an answer's ids are those of the prompt that repeats it."""
    ids: list[int] = []
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        ids += [ROLES[message["role"]], *text_ids(spelt(text, message.get("tool_calls") or [])), EOS]
    return [*ids, ROLES["assistant"]]


def finish(given: Given) -> str:
    return "tool_calls" if given.calls else "stop"


def head(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}


def usage(given: Given) -> dict[str, int]:
    asked, said = len(given.prompt_ids), len(given.response_ids)
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def captured(given: Given, ids: list[int]) -> dict[str, Any]:
    rest: dict[str, Any] = {"logprob": given.logprob, "bytes": None, "top_logprobs": []}
    entries = [{"token": chr(i), **rest} for i in ids]
    return {"token_ids": ids, "logprobs": {"content": entries}}
