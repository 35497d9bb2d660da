"""Turn conversations into prompt tokens and response tokens into text, by the checkpoint's own tokenizer.

Gives the result of transformers' `apply_chat_template` (a test compares both) without importing transformers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from stepstream.learner.data.end_tokens import read_end_tokens
from stepstream.services.inference.chat_template import ChatTemplate, Message, RenderOptions, TemplateError
from stepstream.services.inference.engine import CheckpointRefusedError

__all__ = ["ChatTokenizer", "Message", "RenderOptions", "StreamedText", "TemplateError"]


class ChatTokenizer:
    """The tokenizer and chat template of one checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        """Read `folder`.

        Raises:
            CheckpointRefusedError: tokenizer.json, its configuration or the template is missing or malformed.
        """
        self.folder = folder
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.template = ChatTemplate.read(folder)
            eos = self._tokenizer.token_to_id(self.template.special.get("eos_token", ""))
            self.end_tokens = read_end_tokens(folder) | ({eos} if eos is not None else set())
        except Exception as error:  # `tokenizers` raises bare Exceptions
            raise CheckpointRefusedError(
                f"{folder}: tokenizer cannot be read: {type(error).__name__} {error}"
            ) from error

    @property
    def size(self) -> int:
        """Number of tokens, special ones included."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        options: RenderOptions | None = None,
    ) -> list[int]:
        """Return the conversation's token ids; `add_generation_prompt`: with the beginning of an assistant's message.

        Raises:
            TemplateError: the template cannot render the conversation.
        """
        return self.encode(
            self.template.render(messages, tools, add_generation_prompt=add_generation_prompt, options=options)
        )

    def encode(self, text: str) -> list[int]:
        """Return the tokens of rendered text, which spells its special tokens out."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, with special tokens spelled out."""
        decoded: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return decoded

    def first_token(self, word: str) -> int:
        """Return the id of a word's first token; raises TemplateError if it has none."""
        ids = self.encode(word)
        if not ids:
            raise TemplateError(f"the tokenizer has no token for {word!r}")
        return ids[0]

    def text(self, token_ids: Sequence[int]) -> str:
        """Return a response's text without the end-of-turn token; spells out other special tokens."""
        ids = list(token_ids)
        if ids and ids[-1] in self.end_tokens:
            ids.pop()
        return self.decode(ids)

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
