"""Serve a scripted model that calls any agent's tools, and keep the tokens of each answer."""

import itertools
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from scripted_upstream import EOS, ROLES, ScriptedUpstream, text_ids

FIRST_ORDER = 4711
CONTENT_PIECE = 5


@dataclass
class Answer:
    """One answer of the worker."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprob: float
    """Log-probability of each of its tokens; unique to the answer, exact in single precision."""
    content: str
    calls: list[dict[str, Any]]
    counted: bool
    """True if it reported token counts; a stream does so only on request."""


class ToolUsingModel(ScriptedUpstream):
    """Calls each offered tool once, in order, and the first twice in one reply; then it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[float, Answer] = {}
        self._numbers = itertools.count(1)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        number = next(self._numbers)
        calls = next_calls(body, number)
        content = "" if calls else f"Done, ticket {number} is closed."
        counted = not body.get("stream") or bool((body.get("stream_options") or {}).get("include_usage"))
        response_ids = [*text_ids(text_of(content, calls)), EOS]
        answer = Answer(worker_prompt(body["messages"]), response_ids, -number / 1024, content, calls, counted)
        self.answers[answer.logprob] = answer
        if body.get("stream"):
            return await self._chunks(request, body, answer)
        message = {"role": "assistant", "content": content or None} | ({"tool_calls": calls} if calls else {})
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish(answer)}
        choice |= captured(answer, answer.response_ids) | {"weight_versions": self._versions(answer)}
        reply = head(body, "chat.completion") | {"choices": [choice], "usage": usage(answer)}
        return web.json_response(reply | {"prompt_token_ids": answer.prompt_ids})

    async def _chunks(self, request: web.Request, body: dict[str, Any], answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        deltas = list(pieces(answer))
        left = list(answer.response_ids)
        for position, delta in enumerate(deltas):
            last = position == len(deltas) - 1
            ids, left = (left, []) if last else (left[:1], left[1:])
            choice = {"index": 0, "delta": delta, "finish_reason": finish(answer) if last else None}
            choice |= captured(answer, ids) | ({"weight_versions": self._versions(answer)} if last else {})
            chunk = head(body, "chat.completion.chunk") | {"choices": [choice]}
            await send(response, chunk | ({"prompt_token_ids": answer.prompt_ids} if position == 0 else {}))
        if answer.counted:
            await send(response, head(body, "chat.completion.chunk") | {"choices": [], "usage": usage(answer)})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _versions(self, answer: Answer) -> list[dict[str, int]]:
        return [{"version": self.version, "start": 0, "end": len(answer.response_ids)}]


async def send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def next_calls(body: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Return the calls of the first tool that the conversation has not called; none if it called all."""
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


def pieces(answer: Answer) -> Any:
    """Yield the deltas of a stream; the pieces of arguments are not valid JSON by themselves."""
    for index, one in enumerate(answer.calls):
        function = one["function"]
        yield {"tool_calls": [one | {"index": index, "function": {"name": function["name"], "arguments": ""}}]}
        half = len(function["arguments"]) // 2
        for part in (function["arguments"][:half], function["arguments"][half:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
    for start in range(0, len(answer.content), CONTENT_PIECE):
        yield {"role": "assistant", "content": answer.content[start : start + CONTENT_PIECE]}


def text_of(content: str, calls: list[dict[str, Any]]) -> str:
    """Return an answer's text with normalised argument JSON, since templates write it anew."""
    functions = [one["function"] for one in calls]
    texts = [f"<{f['name']} {json.dumps(json.loads(f['arguments'] or '{}'), sort_keys=True)}>" for f in functions]
    return content + "".join(texts)


def worker_prompt(messages: list[dict[str, Any]]) -> list[int]:
    """Return the ids of a prompt; an answer has the same ids in later prompts (append-only)."""
    ids: list[int] = []
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        ids += [ROLES[message["role"]], *text_ids(text_of(text, message.get("tool_calls") or [])), EOS]
    return [*ids, ROLES["assistant"]]


def finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def head(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}


def usage(answer: Answer) -> dict[str, int]:
    prompt, response = len(answer.prompt_ids), len(answer.response_ids)
    return {"prompt_tokens": prompt, "completion_tokens": response, "total_tokens": prompt + response}


def captured(answer: Answer, ids: list[int]) -> dict[str, Any]:
    rest: dict[str, Any] = {"logprob": answer.logprob, "bytes": None, "top_logprobs": []}
    entries = [{"token": chr(i), **rest} for i in ids]
    return {"token_ids": ids, "logprobs": {"content": entries}}
