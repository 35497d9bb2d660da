"""Read Anthropic's Messages API. Pure."""

import json
from typing import Any

from stepstream.sdk.clients.call import Answer, AnswerStream, Json, ToolCallParts
from stepstream.sdk.messages import content_of, plain_data, text_of

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


class AnthropicMessages:
    """The Messages API, whose messages are lists of content blocks."""

    def prompt(self, request: Json) -> list[Any]:
        """Return the messages of a request; each tool result becomes a message."""
        system = request.get("system")
        messages: list[Any] = [{"role": "system", "content": _text(_blocks(system))}] if system else []
        for turn in map(plain_data, request.get("messages") or ()):
            if not isinstance(turn, dict):
                messages.append(turn)
            elif turn.get("role") == "assistant":
                messages.append(_assistant(_blocks(turn.get("content"))))
            else:
                messages += _user(_blocks(turn.get("content")))
        return messages

    def max_tokens(self, request: Json) -> Any:
        """Return the token limit of a request."""
        return request.get("max_tokens")

    def answer(self, reply: Json) -> Answer:
        """Read a message."""
        reason, usage = reply.get("stop_reason") or "", reply.get("usage") or {}
        prompt = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        return Answer(
            _assistant(_blocks(reply.get("content"))),
            _FINISH.get(reason, reason),
            reply.get("model") or "",
            sum(usage.get(name) or 0 for name in prompt) if "input_tokens" in usage else None,
            usage.get("output_tokens"),
        )

    def stream(self) -> AnswerStream:
        """Return an empty stream."""
        return MessageStream()


class MessageStream:
    """Collects events."""

    def __init__(self) -> None:
        self._message: Json | None = None
        self._blocks: dict[int, Json] = {}
        self._parts: dict[int, ToolCallParts] = {}

    def add(self, event: Json) -> bool:
        """Add an event; return True if it has output of the model."""
        kind = event.get("type")
        if kind == "message_start":
            self._message = dict(event["message"])
        elif kind == "content_block_start":
            self._blocks[event["index"]] = dict(event["content_block"])
            self._parts[event["index"]] = ToolCallParts()
        elif kind == "content_block_delta" and event["index"] in self._blocks:
            self._add_delta(self._blocks[event["index"]], self._parts[event["index"]], event["delta"])
        elif kind == "message_delta" and self._message is not None:
            self._message |= {name: value for name, value in event["delta"].items() if value is not None}
            usage = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
            self._message["usage"] = {**(self._message.get("usage") or {}), **usage}
        return kind in ("content_block_start", "content_block_delta")

    def answer(self) -> Answer | None:
        """Return the answer so far."""
        if self._message is None:
            return None
        blocks = []
        for index in sorted(self._blocks):
            arguments = "".join(self._parts[index].arguments)
            blocks.append({**self._blocks[index], "input": _json(arguments)} if arguments else self._blocks[index])
        return AnthropicMessages().answer({**self._message, "content": blocks})

    def _add_delta(self, block: Json, parts: ToolCallParts, delta: Json) -> None:
        for name in ("text", "thinking"):
            if isinstance(delta.get(name), str):
                block[name] = (block.get(name) or "") + delta[name]
        parts.arguments.append(delta.get("partial_json") or "")


def _blocks(content: Any) -> list[Any]:
    """Return the blocks of a content, which may be a text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [plain_data(block) for block in content or ()]


def _assistant(blocks: list[Any]) -> Json:
    calls = [block for block in blocks if _kind(block).endswith("tool_use")]
    thinking = [block for block in blocks if _kind(block) == "thinking"]
    rest = [block for block in blocks if block not in calls and block not in thinking]
    return {
        "role": "assistant",
        "content": _text(rest),
        "tool_calls": [
            {"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")} for block in calls
        ],
        "reasoning": "\n".join(text_of(block.get("thinking")) for block in thinking) or None,
    }


def _user(blocks: list[Any]) -> list[Json]:
    results = [block for block in blocks if _kind(block) == "tool_result"]
    rest = [block for block in blocks if _kind(block) != "tool_result"]
    messages = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _text(_blocks(block.get("content")))}
        for block in results
    ]
    return [*messages, {"role": "user", "content": _text(rest)}] if rest or not results else messages


def _text(blocks: list[Any]) -> str:
    plain = [{"type": "text", "text": block["text"]} if _kind(block) == "text" else block for block in blocks]
    return content_of(plain)


def _kind(block: Any) -> str:
    return text_of(block.get("type")) if isinstance(block, dict) else ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # the stream was cut inside the arguments
        return text
