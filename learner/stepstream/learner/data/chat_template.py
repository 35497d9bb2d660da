"""Tokenize written responses and conversations as the model itself would have sampled them.

The chat template that serves the model renders the response behind a prompt. The text it adds, up to the first token
that ends a turn, is the text that a worker would have sampled and parsed as this response. For a single response the
prompt is a placeholder: its tokens go behind the exact prompt tokens of the step. A conversation is rendered response
by response. It is one training sequence as long as the template only appends to its earlier text. Where it does not
(some templates leave out earlier reasoning), a new sequence begins.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from stepstream.learner.data.end_tokens import read_end_tokens
from stepstream.learner.data.sequences import ResponseSpan

Message = dict[str, Any]
_ANCHOR: Message = {"role": "user", "content": "?"}


class ChatTemplate:
    """A model's tokenizer and chat template, loaded at first use."""

    def __init__(self, folder: Path) -> None:
        """Use the tokenizer of a folder in Hugging Face form."""
        self._folder = folder

    def __call__(self, response: str) -> list[int]:
        """Return the token ids of a response, including the end of the turn; empty if it cannot be rendered.

        Args:
            response: text, or an assistant's message in OpenAI's form as a JSON object, for a response with tool calls.
        """
        message = parse_response(response)
        if message is None:
            return []
        before, after = self._render([_ANCHOR], add_prompt=True), self._render([_ANCHOR, message])
        text = ""
        if before is not None and after is not None and after.startswith(before):
            text = after[len(before) :]
        elif message.get("tool_calls"):
            return []
        return self._response_ids(text or message["content"])[0]

    def conversation_sequences(self, conversation: Mapping[str, Any]) -> list[ResponseSpan]:
        """Return the training sequences of a Conversation, without the responses that cannot be rendered."""
        messages = _template_messages(conversation["messages"])
        tools = _tools_of(conversation["tool_definitions"])
        sequences: list[ResponseSpan] = []
        ids: list[int] = []
        spans: list[tuple[int, int, int]] = []
        rendered: str | None = None  # the text of `ids`
        for span in conversation["spans"]:
            number = span["message"]
            if not 0 < number < len(messages):
                continue
            before = self._render(messages[:number], tools, add_prompt=True)
            after = self._render(messages[: number + 1], tools)
            if not before or after is None or not after.startswith(before):
                continue  # the template cannot render it, or the prompt would be empty
            if rendered is None or not before.startswith(rendered):
                rendered, ids, spans = "", [], []
                sequences.append(ResponseSpan(ids, spans))
            ids += self._encode(before[len(rendered) :])
            response, end = self._response_ids(after[len(before) :])
            spans.append((len(ids), len(ids) + len(response), span["step_index"]))
            ids += response
            rendered = None if end is None else after[: len(before) + end]
        return sequences

    def _response_ids(self, text: str) -> tuple[list[int], int | None]:
        """Return the tokens of a response up to the end of its turn, which is appended if the text has none.

        Returns:
            The tokens, and the length of the text that they cover; None if the end was appended.
        """
        ids = self._encode(text)
        last = next((index for index, token in enumerate(ids) if token in self._ends), None)
        if last is None:
            return [*ids, self._ends[0]], None
        ending = str(self._tokenizer.convert_ids_to_tokens(ids[last]))
        at = text.find(ending)
        return ids[: last + 1], None if at < 0 else at + len(ending)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _render(
        self, messages: Sequence[Message], tools: list[Any] | None = None, *, add_prompt: bool = False
    ) -> str | None:
        """Render messages with the chat template; None if the template rejects them.

        Args:
            messages: messages of a conversation.
            tools: tools that the model may call; None: none.
            add_prompt: True: append the prompt for the assistant's answer.
        """
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tools=tools, tokenize=False, add_generation_prompt=add_prompt
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
        """Tokens that end a turn: the stop tokens of workers, and the tokenizer's own."""
        own = self._tokenizer.eos_token_id
        others = sorted(read_end_tokens(self._folder) - {own})
        return others if own is None else [own, *others]


def parse_response(response: str) -> Message | None:
    """Return a response in the message form of chat templates; None if it is empty or malformed."""
    try:
        parsed = _parse(response)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or parsed.get("role") != "assistant":
        return {"role": "assistant", "content": response} if response else None
    content, calls = parsed.get("content"), parsed.get("tool_calls") or []
    if not isinstance(content, str | None) or not (content or calls):
        return None
    message: Message = {"role": "assistant", "content": content or ""}
    try:
        return message | {"tool_calls": [_call(call) for call in calls]} if calls else message
    except (TypeError, KeyError, ValueError):
        return None


def _template_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages of a Conversation in the form of chat templates, up to the first malformed one."""
    converted: list[Message] = []
    for source in messages:
        message: Message = {"role": source["role"], "content": source["content"]}
        calls = [
            {"id": call["call_id"], "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in source["tool_calls"]
        ]
        more = {
            "tool_call_id": source["tool_call_id"],
            "name": source["name"],
            "reasoning_content": source["reasoning"],
        }
        message |= {key: value for key, value in more.items() if value is not None}
        try:
            converted.append(message | {"tool_calls": [_call(call) for call in calls]} if calls else message)
        except (TypeError, ValueError):
            break
    return converted


def _tools_of(tool_definitions: str | None) -> list[Any] | None:
    """Return the tools for a template; None if there are none or they are not a list."""
    try:
        parsed = _parse(tool_definitions or "null")
    except ValueError:
        return None
    return parsed if isinstance(parsed, list) and parsed else None


def _call(call: Mapping[str, Any]) -> Message:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = _parse(arguments)
    if not isinstance(arguments, dict):
        raise TypeError("the arguments of a tool call are not an object")
    return {"type": "function", "id": call.get("id"), "function": {"name": function["name"], "arguments": arguments}}


def _parse(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is malformed, or nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
