"""The tokens of what somebody wrote, as the model itself would have sampled them: a response, or a conversation.

The chat template that serves the model renders the response behind a prompt; what it puts there, up to the first token
that ends a turn, is what a worker would have sampled and read back as this response. Of a response alone the prompt is
a stand-in: its tokens go behind the exact ones of the step. A conversation is rendered response by response, and is one
training sequence as long as the template only adds to what it rendered before; where it does not (some leave out
earlier reasoning), another begins.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from stepstream.learner.data.sequences import ResponseSpan

Message = dict[str, Any]
_ANCHOR: Message = {"role": "user", "content": "?"}


class ChatTemplate:
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
        before, whole = self._rendered([_ANCHOR], asks=True), self._rendered([_ANCHOR, message])
        text = ""
        if before is not None and whole is not None and whole.startswith(before):
            text = whole[len(before) :]
        elif message.get("tool_calls"):
            return []
        return self._said(text or message["content"])[0]

    def transcript(self, conversation: Mapping[str, Any]) -> list[ResponseSpan]:
        """Training sequences of a Conversation; those of its responses that cannot be written are left out."""
        messages = _written(conversation["messages"])
        tools = _offered(conversation["tool_definitions"])
        found: list[ResponseSpan] = []
        ids: list[int] = []
        spans: list[tuple[int, int, int]] = []
        known: str | None = None  # text that `ids` spell
        for span in conversation["spans"]:
            place = span["message"]
            if not 0 < place < len(messages):
                continue
            before = self._rendered(messages[:place], tools, asks=True)
            whole = self._rendered(messages[: place + 1], tools)
            if not before or whole is None or not whole.startswith(before):
                continue  # the template has no such form, or nothing would stand before the response
            if known is None or not before.startswith(known):
                known, ids, spans = "", [], []
                found.append(ResponseSpan(ids, spans))
            ids += self._ids(before[len(known) :])
            said, end = self._said(whole[len(before) :])
            spans.append((len(ids), len(ids) + len(said), span["step_index"]))
            ids += said
            known = None if end is None else whole[: len(before) + end]
        return found

    def _said(self, text: str) -> tuple[list[int], int | None]:
        """The tokens of a response up to the one that ends its turn, which is added where the text has none; and how
        much of the text they spell: None where one was added."""
        ids = self._ids(text)
        place = next((place for place, token in enumerate(ids) if token in self._ends), None)
        if place is None:
            return [*ids, self._ends[0]], None
        ending = str(self._tokenizer.convert_ids_to_tokens(ids[place]))
        at = text.find(ending)
        return ids[: place + 1], None if at < 0 else at + len(ending)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _rendered(
        self, messages: Sequence[Message], tools: list[Any] | None = None, *, asks: bool = False
    ) -> str | None:
        """The messages by the template; None where it has no such form.

        Args:
            messages: of a conversation.
            tools: that the model is offered; None: none.
            asks: whether the assistant is to answer next.
        """
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tools=tools, tokenize=False, add_generation_prompt=asks
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, RecursionError):
            return None

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
        told = _read(response)
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


def _written(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages of a Conversation as chat templates expect them, up to the first that is none."""
    written: list[Message] = []
    for told in messages:
        message: Message = {"role": told["role"], "content": told["content"]}
        calls = [
            {"id": call["call_id"], "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in told["tool_calls"]
        ]
        more = {"tool_call_id": told["tool_call_id"], "name": told["name"], "reasoning_content": told["reasoning"]}
        message |= {key: value for key, value in more.items() if value is not None}
        try:
            written.append(message | {"tool_calls": [_call(call) for call in calls]} if calls else message)
        except (TypeError, ValueError):
            break
    return written


def _offered(tool_definitions: str | None) -> list[Any] | None:
    """Tools for a template; None: none, or in a form that is no list."""
    try:
        told = _read(tool_definitions or "null")
    except ValueError:
        return None
    return told if isinstance(told, list) and told else None


def _call(call: Mapping[str, Any]) -> Message:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = _read(arguments)
    if not isinstance(arguments, dict):
        raise TypeError("the arguments of a tool call are no object")
    return {"type": "function", "id": call.get("id"), "function": {"name": function["name"], "arguments": arguments}}


def _read(text: str) -> Any:
    """JSON.

    Raises:
        ValueError: it is none, or nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
