"""Turn conversations into prompt tokens and response tokens into text, by the checkpoint's own tokenizer.

Gives the result of transformers' `apply_chat_template` (a test compares both) without importing transformers.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from stepstream.services.inference.engine import CheckpointRefusedError

Message = dict[str, Any]
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class TemplateError(ValueError):
    """The conversation cannot be rendered by the model's chat template."""


class ChatTokenizer:
    """The tokenizer and chat template of one checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        """Read `folder`.

        Raises:
            CheckpointRefusedError: tokenizer.json, its configuration or the template is missing or malformed.
        """
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            config = json.loads((folder / "tokenizer_config.json").read_bytes())
            file = folder / "chat_template.jinja"
            source = file.read_text(encoding="utf-8") if file.exists() else config["chat_template"]
            self._template = _environment().from_string(source)
        except Exception as error:  # `tokenizers` raises bare Exceptions
            raise CheckpointRefusedError(
                f"{folder}: tokenizer cannot be read: {type(error).__name__} {error}"
            ) from error
        self._special = {name: _text(config[name]) for name in _SPECIAL if config.get(name)}

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the conversation's token ids; `add_generation_prompt`: with the beginning of an assistant's message.

        Raises:
            TemplateError: the template cannot render the conversation.
        """
        try:
            text = self._template.render(
                messages=messages, tools=tools or None, add_generation_prompt=add_generation_prompt, **self._special
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise TemplateError(f"the chat template cannot render these messages: {error}") from error
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def first_token(self, word: str) -> int:
        """Return the id of a word's first token; raises TemplateError if it has none."""
        ids: list[int] = self._tokenizer.encode(word, add_special_tokens=False).ids
        if not ids:
            raise TemplateError(f"the tokenizer has no token for {word!r}")
        return ids[0]

    def text(self, token_ids: Sequence[int]) -> str:
        """Return a response's text without the end-of-turn token; spells out other special tokens."""
        ids = list(token_ids)
        if ids and self.token(ids[-1]) == self._special.get("eos_token"):
            ids.pop()
        decoded: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return decoded

    def token(self, token_id: int) -> str:
        """Return a token's name; empty: unknown."""
        return self._tokenizer.id_to_token(token_id) or ""


class StreamedText:
    """Decodes a growing list of tokens into pieces of whole characters.

    Each call decodes the last piece again, because a token's text may depend on its neighbours, but not on more.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._emitted: list[int] = []
        self._new: list[int] = []

    def add(self, token_ids: Sequence[int], *, last: bool = False) -> str:
        """Return the new text; empty while a character's bytes are incomplete, unless these tokens are the last."""
        self._new += token_ids
        before = self._tokenizer.text(self._emitted)
        text = self._tokenizer.text(self._emitted + self._new)
        if text.endswith("\N{REPLACEMENT CHARACTER}") and not last:
            return ""
        self._emitted, self._new = self._new, []
        return text[len(before) :]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _raise
    return environment


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])
