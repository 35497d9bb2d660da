"""A `response` object, and its items, made from what a chat completion said."""

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
"""What a response repeats of its request, with what the API puts where the request says nothing."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responder:
    """Makes the objects of one response. All its ids come from one seed."""

    def __init__(self, request: Raw, seed: str, custom: frozenset[str]) -> None:
        """`custom`: names of tools whose calls are given free text instead of arguments."""
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

    def learn(self, reply: Raw) -> None:
        """Takes over what a completion, or a stream's chunk, says of itself."""
        if isinstance(reply.get("created"), int):
            self._created_at = reply["created"]
        if isinstance(reply.get("model"), str) and reply["model"]:
            self._model = reply["model"]

    def response(self, status: str, output: list[Raw], usage: Any = None, error: Raw | None = None) -> Raw:
        """The response as it is now.

        Args:
            status: `in_progress`, `completed` or `failed`; or a finish reason that means `incomplete`.
            output: its items.
            usage: of the chat completion.
            error: for `failed`, its `code` and `message`.
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

    def reasoning(self, index: int, said: str, status: str) -> Raw:
        """The item with what the model thought."""
        content = [{"type": "reasoning_text", "text": said}] if status != "in_progress" else []
        item_id = f"rs_{self._seed}_{index}"
        return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}

    def message(self, index: int, parts: list[Raw], status: str) -> Raw:
        """The item with what the model said."""
        item_id = f"msg_{self._seed}_{index}"
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": parts}

    def call(self, index: int, call_id: str, name: str, arguments: str, status: str) -> Raw:
        """The item of one call of a tool."""
        known = call_id or f"call_{self._seed}_{index}"
        if name in self.custom:
            given = custom_input(arguments)
            item_id = f"ctc_{self._seed}_{index}"
            return {"id": item_id, "type": "custom_tool_call", "call_id": known, "name": name, "input": given}
        item_id = f"fc_{self._seed}_{index}"
        call = {"id": item_id, "type": "function_call", "status": status, "call_id": known, "name": name}
        return call | {"arguments": arguments}


def final_status(finish_reason: Any) -> str:
    """What `Responder.response` takes as the status of an answer that ended for this reason."""
    return finish_reason if isinstance(finish_reason, str) and finish_reason in _INCOMPLETE else "completed"


def text_part(said: str, logprobs: list[Raw]) -> Raw:
    """A part of a message that is text."""
    return {"type": "output_text", "text": said, "annotations": [], "logprobs": logprobs}


def refusal_part(said: str) -> Raw:
    """A part of a message that is a refusal."""
    return {"type": "refusal", "refusal": said}


def reasoning_of(message: Raw) -> str:
    """The reasoning in a chat message or delta, by either of its names."""
    named = message.get("reasoning_content")
    return text(message.get("reasoning") if named is None else named)


def logprobs_of(choice: Raw) -> list[Raw]:
    """The logprobs of a choice as the parts of a message have them."""
    found = choice.get("logprobs")
    content = found.get("content") if isinstance(found, dict) else None
    return [
        _logprob(entry) | {"top_logprobs": [_logprob(top) for top in entry.get("top_logprobs") or ()]}
        for entry in content or ()
    ]


def custom_input(arguments: str) -> str:
    """The free text in the arguments of the function that stands for a custom tool; the arguments if it has none."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return given["input"] if isinstance(given, dict) and isinstance(given.get("input"), str) else arguments


def usage_of(usage: Any) -> Raw | None:
    """Usage of tokens in the Responses API's words; None where the completion tells none."""
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
    found = usage.get(details)
    return count(found.get(name)) or 0 if isinstance(found, dict) else 0


def _logprob(entry: Raw) -> Raw:
    return {"token": text(entry.get("token")), "logprob": entry.get("logprob"), "bytes": entry.get("bytes") or []}


def _tool(tool: Any) -> Any:
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"parameters": None, "strict": True, "description": None} | tool
    return tool
