"""Describe a model's answer, in any API. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """The answer of a model."""

    message: Json
    """In the shape of OpenAI's assistant messages."""
    finish_reason: str = ""
    model: str = ""
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    prompt_token_ids: Sequence[int] = ()
    """Empty unless the server returns ids, as vLLM does for `return_token_ids`; so are the next three."""
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    policy_versions: Sequence[Json] = ()
    """Spans of response tokens by policy version, as Stepstream's workers return them."""


class AnswerStream(Protocol):
    """Collects the events of a streamed answer."""

    def add(self, event: Json) -> bool:
        """Add an event; return True if it has output of the model."""

    def answer(self) -> Answer | None:
        """Return the answer so far; None: no event has come."""


class Api(Protocol):
    """One API: how to read its requests and answers."""

    def prompt(self, request: Json) -> list[Any]:
        """Return the messages of a request, in OpenAI's shape."""

    def max_tokens(self, request: Json) -> Any:
        """Return the token limit of a request; None: none."""

    def answer(self, reply: Json) -> Answer:
        """Read a whole answer."""

    def stream(self) -> AnswerStream:
        """Return an empty stream."""


@dataclass(slots=True)
class ToolCallParts:
    """One tool call of a streamed answer."""

    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def call(self) -> Json:
        """Return the call as `messages.tool_call_of` reads it."""
        return {"id": self.call_id, "name": self.name, "arguments": "".join(self.arguments)}
