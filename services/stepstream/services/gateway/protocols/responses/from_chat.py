"""Build a `response` object and its items from a chat completion. Pure."""

from typing import Any

import orjson

from stepstream.services.gateway.protocols.messages import count, text
from stepstream.services.gateway.protocols.responses.items import Raw
from stepstream.services.gateway.protocols.responses.to_chat import wants_logprobs

_ECHOED: Raw = {
    "background": False,
    "conversation": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Request fields that a response repeats, with the API's defaults."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseBuilder:
    """Builds the objects of one response. All its ids derive from one seed."""

    def __init__(self, request: Raw, seed: str, custom: frozenset[str]) -> None:
        """`custom`: names of tools that take free text instead of arguments."""
        self.id = f"resp_{seed}"
        self.custom = custom
        self.logprobs = wants_logprobs(request)
        self._seed = seed
        self._created_at = 0
        self._model = text(request.get("model"))
        self._echo = {
            name: default if request.get(name) is None else request[name] for name, default in _ECHOED.items()
        }
        if isinstance(self._echo["tools"], list):
            self._echo["tools"] = [_tool(tool) for tool in self._echo["tools"]]
        if isinstance(self._echo["text"], dict):
            self._echo["text"] = _ECHOED["text"] | self._echo["text"]

    def read_metadata(self, reply: Raw) -> None:
        """Take creation time and model from a completion or chunk."""
        if isinstance(reply.get("created"), int):
            self._created_at = reply["created"]
        if isinstance(reply.get("model"), str) and reply["model"]:
            self._model = reply["model"]

    def response(self, status: str, output: list[Raw], usage: Any = None, error: Raw | None = None) -> Raw:
        """Return the response so far.

        Args:
            status: `in_progress`, `completed` or `failed`; or the finish reason of an `incomplete` one.
            output: its items.
            usage: usage of the chat completion.
            error: for `failed`: `code` and `message`.
        """
        reason = _INCOMPLETE.get(status)
        return self._echo | {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": self._created_at if status == "completed" else None,
            "status": "incomplete" if reason else status,
            "error": error,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": self._model,
            "output": output,
            "usage": usage_of(usage),
        }

    def reasoning(self, index: int, reasoning: str, status: str) -> Raw:
        """Return a reasoning item; in progress, without text."""
        content = [{"type": "reasoning_text", "text": reasoning}] if status != "in_progress" else []
        item_id = f"rs_{self._seed}_{index}"
        return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}

    def message(self, index: int, parts: list[Raw], status: str) -> Raw:
        """Return a message item."""
        item_id = f"msg_{self._seed}_{index}"
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": parts}

    def call(self, index: int, call_id: str, name: str, arguments: str, status: str) -> Raw:
        """Return the item of a tool call; without an id, it gets one."""
        call_id = call_id or f"call_{self._seed}_{index}"
        if name in self.custom:
            item_id = f"ctc_{self._seed}_{index}"
            return {
                "id": item_id,
                "type": "custom_tool_call",
                "call_id": call_id,
                "name": name,
                "input": custom_input(arguments),
            }
        item_id = f"fc_{self._seed}_{index}"
        call = {"id": item_id, "type": "function_call", "status": status, "call_id": call_id, "name": name}
        return call | {"arguments": arguments}


def final_status(finish_reason: Any) -> str:
    """Return the status for `ResponseBuilder.response` of an answer with this finish reason."""
    return finish_reason if isinstance(finish_reason, str) and finish_reason in _INCOMPLETE else "completed"


def text_part(value: str, logprobs: list[Raw]) -> Raw:
    """Return a text part of a message."""
    return {"type": "output_text", "text": value, "annotations": [], "logprobs": logprobs}


def refusal_part(refusal: str) -> Raw:
    """Return a refusal part of a message."""
    return {"type": "refusal", "refusal": refusal}


def reasoning_of(message: Raw) -> str:
    """Return the reasoning in a chat message or delta, under either of its names."""
    content = message.get("reasoning_content")
    return text(message.get("reasoning") if content is None else content)


def logprobs_of(choice: Raw) -> list[Raw]:
    """Return the logprobs of a choice in the form of a text part."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [
        _logprob(entry) | {"top_logprobs": [_logprob(top) for top in entry.get("top_logprobs") or ()]}
        for entry in content or ()
    ]


def custom_input(arguments: str) -> str:
    """Return the free text in the arguments of a custom tool's function; without one, the arguments."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return value["input"] if isinstance(value, dict) and isinstance(value.get("input"), str) else arguments


def usage_of(usage: Any) -> Raw | None:
    """Return the usage in the Responses API's form; None if the completion has none."""
    if not isinstance(usage, dict):
        return None
    prompt, response = count(usage.get("prompt_tokens")) or 0, count(usage.get("completion_tokens")) or 0
    cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": response,
        "output_tokens_details": {"reasoning_tokens": _detail(usage, "completion_tokens_details", "reasoning_tokens")},
        "total_tokens": prompt + response,
    }


def _detail(usage: Raw, details: str, name: str) -> int:
    counts = usage.get(details)
    return count(counts.get(name)) or 0 if isinstance(counts, dict) else 0


def _logprob(entry: Raw) -> Raw:
    return {"token": text(entry.get("token")), "logprob": entry.get("logprob"), "bytes": entry.get("bytes") or []}


def _tool(tool: Any) -> Any:
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"parameters": None, "strict": True, "description": None} | tool
    return tool
