"""The tokens of a response that somebody wrote, as the model itself would have sampled them.

The chat template that serves the model renders the response behind a prompt; what it puts there, up to the first token
that ends a turn, is what a worker would have sampled and read back as this response. The prompt is a stand-in: the
tokens go behind the exact ones of the step.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

Message = dict[str, Any]
_ANCHOR: Message = {"role": "user", "content": "?"}


class Speech:
    """A model's tokenizer and chat template; both are read when they are first needed."""

    def __init__(self, folder: Path) -> None:
        """Of a folder in Hugging Face form."""
        self._folder = folder

    def __call__(self, response: str) -> list[int]:
        """Token ids of a response, the one that ends the turn among them; empty where it cannot be written.

        Args:
            response: text, or a JSON object that is an assistant's message in OpenAI's form, for one with tool calls.
        """
        message = message_of(response)
        if message is None:
            return []
        text = self._rendered(message)
        if text is None and message.get("tool_calls"):
            return []
        ids: list[int] = self._tokenizer(text or message["content"], add_special_tokens=False)["input_ids"]
        end = next((place for place, token in enumerate(ids) if token in self._ends), None)
        return [*ids, self._ends[0]] if end is None else ids[: end + 1]

    def _rendered(self, message: Message) -> str | None:
        """What the template puts behind a prompt; None where it has no such form."""
        try:
            before = self._tokenizer.apply_chat_template([_ANCHOR], tokenize=False, add_generation_prompt=True)
            whole = self._tokenizer.apply_chat_template([_ANCHOR, message], tokenize=False)
        except (jinja2.TemplateError, TypeError, ValueError):
            return None
        return str(whole[len(before) :]) if whole.startswith(before) else None

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._folder, local_files_only=True)

    @cached_property
    def _ends(self) -> list[int]:
        """Tokens that end a turn: those at which workers stop, and the tokenizer's own."""
        told = json.loads((self._folder / "config.json").read_bytes()).get("eos_token_id")
        ends = [*(told if isinstance(told, list) else [told]), self._tokenizer.eos_token_id]
        return [end for end in ends if end is not None]


def message_of(response: str) -> Message | None:
    """The response as chat templates expect a message; None: it says nothing, or is no well-formed message."""
    try:
        told = json.loads(response)
    except ValueError:
        told = None
    if not isinstance(told, dict) or told.get("role") != "assistant":
        return {"role": "assistant", "content": response} if response else None
    content, calls = told.get("content"), told.get("tool_calls") or []
    if not isinstance(content, str | None) or not (content or calls):
        return None
    message: Message = {"role": "assistant", "content": content or ""}
    try:
        return message | {"tool_calls": [_call(call) for call in calls]} if calls else message
    except (TypeError, KeyError, ValueError):
        return None


def _call(call: Mapping[str, Any]) -> Message:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise TypeError("the arguments of a tool call are no object")
    return {"type": "function", "id": call.get("id"), "function": {"name": function["name"], "arguments": arguments}}
