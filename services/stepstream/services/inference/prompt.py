"""Build a request's prompt: continue the recorded ids of the step before, or render the whole conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepstream.services.inference.chat_request import ChatRequest
from stepstream.services.inference.chat_tokenizer import ChatTokenizer, RenderOptions
from stepstream.services.inference.prompt_splice import CannotContinueError, Reason, continue_prompt

Way = Literal["splice", "none"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a prompt, and how they came about."""

    token_ids: list[int]
    way: Way | None = None
    """How the ids continue the recorded ones; `none`: they begin a new sequence; None: the request had none."""
    reason: Reason | None = None
    """Why the ids begin a new sequence; None unless `way` is `none`."""

    @property
    def fields(self) -> dict[str, str]:
        """The reply's fields about the prefix."""
        fields: dict[str, str] = {} if self.way is None else {"stepstream_prefix": self.way}
        return fields if self.reason is None else fields | {"stepstream_prefix_reason": self.reason}


class RequestRendering:
    """One request's tools and template arguments with the model's template and tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer, tools: Sequence[Mapping[str, Any]], options: RenderOptions) -> None:
        self._tokenizer, self._tools, self._options = tokenizer, tools, options

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """Return the conversation's text; raises TemplateError if the template cannot render it."""
        return self._tokenizer.template.render(
            [dict(message) for message in messages],
            self._tools,
            add_generation_prompt=add_generation_prompt,
            options=self._options,
        )

    def encode(self, text: str) -> list[int]:
        """Return the tokens of rendered text."""
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, with special tokens spelled out."""
        return self._tokenizer.decode(token_ids)


def build_prompt(request: ChatRequest, tokenizer: ChatTokenizer) -> Prompt:
    """Return the prompt of a request.

    Raises:
        TemplateError: the template cannot render the conversation, and the recorded ids cannot be continued.
    """
    reason: Reason | None = None
    if request.prefix is not None:
        rendering = RequestRendering(tokenizer, request.tools, request.options)
        try:
            ids = continue_prompt(request.prefix, request.messages, rendering, tokenizer.end_tokens)
            return Prompt(ids, "splice")
        except CannotContinueError as error:
            reason = error.reason
    ids = tokenizer.prompt_ids(request.messages, request.tools, options=request.options)
    return Prompt(ids, None if reason is None else "none", reason)
