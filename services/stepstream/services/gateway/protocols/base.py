"""What the gateway needs to know of a protocol of model calls, whichever it is.

A protocol is used in two ways. Where the upstream speaks it, the caller's bytes go through and the protocol only reads
along: `read` the request, `answer` or `stream` the reply. Where the upstream speaks chat completions alone (inference
workers do), `translation` turns the request into one and the reply back, and the chat protocol reads along.

Calls that failed, in the log's words: alike for every protocol.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from stepstream.topics.events import Message, Sampling, new_message

ProtocolName = Literal["chat", "responses", "anthropic"]


@dataclass(slots=True)
class Conversation:
    """What a request says, in the log's words."""

    messages: list[Message]
    """The whole prompt: system prompt or instructions first, tool results as messages of role `tool`."""
    model: str
    sampling: Sampling
    stream: bool = False
    user: str | None = None
    """The person, where the protocol has a field for that (`user`, `safety_identifier`, `metadata.user_id`)."""
    previous_response_id: str | None = None
    """Responses API: the response whose conversation `messages` goes on; they are then only what is new."""
    instructions: int = 0
    """How many leading messages are `instructions` of this call alone: a call that goes on from its response has its
    own, so they are no part of the conversation, and the conversation so far goes between them and what is new."""
    tools: Any = None
    """Tools on offer, as the upstream is told them; None: none, or not known."""
    hidden: bool = False
    """Whether it holds more text for the model than messages and tools, which is not recorded."""


@dataclass(slots=True)
class Answer:
    """What came back from one call, as far as it is recorded."""

    message: Message
    model: str = ""
    finish_reason: str = ""
    """In the words of chat completions: `stop`, `length`, `tool_calls`, `content_filter`, `error`."""
    response_id: str = ""
    prompt_token_ids: Any = None
    token_ids: Any = None
    logprobs: list[float] | None = None
    weight_versions: Any = None
    error: str | None = None
    others: list["Answer"] = field(default_factory=list)
    """The alternatives to this one, the first (`n` above 1), in their order."""
    usage_prompt_tokens: int | None = None
    usage_response_tokens: int | None = None
    """As the upstream counts: of all alternatives together."""
    items: list[dict[str, Any]] = field(default_factory=list)
    """Responses API: what of it, as the caller saw it, a later call may name by an id instead of repeating it."""

    def every(self) -> list["Answer"]:
        """This one and its alternatives."""
        return [self, *self.others]


@dataclass(frozen=True, slots=True)
class Asked:
    """Which of the additions to the upstream's request the caller asked for too, and so gets back."""

    logprobs: bool
    token_ids: bool


class AnswerStream(Protocol):
    """Gathers the events of one streamed reply into the answer that they spell."""

    def add(self, event: dict[str, Any]) -> bool:
        """Takes in the JSON of one event's `data`; True if the model said something in it."""
        ...

    def answer(self) -> Answer:
        """What has been said so far; without a finish reason or error if the end has not come."""
        ...


class ChatTranslation(Protocol):
    """One call in another protocol, made as a chat completion. `request` is the body for `/v1/chat/completions`."""

    request: dict[str, Any]
    items: list[dict[str, Any]]
    """As `Answer.items`, once the answer is whole."""

    def reply(self, completion: dict[str, Any]) -> dict[str, Any]:
        """The whole reply, from a chat completion."""
        ...

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """Server-sent events (complete, `event:` lines and blank lines included) for one chunk of a stream."""
        ...

    def end(self, error: str | None = None) -> bytes:
        """The events that end a stream; with `error`, those that say it broke and why."""
        ...


@dataclass(slots=True)
class History:
    """What a chat upstream is sent for `previous_response_id`: it keeps no conversations itself."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    """Chat messages, raw, of the whole conversation up to and with that response."""
    trajectory_id: str = ""
    """Where that response is recorded."""
    persons: dict[str, int] = field(default_factory=dict)
    """Who took part in it, and since when: microseconds since the Unix epoch."""


class ModelProtocol(Protocol):
    """One protocol."""

    name: ProtocolName
    path: str
    """Where its calls go, at the upstream too, as `/v1/chat/completions`."""

    def resolved(self, request: dict[str, Any], known: Callable[[str], dict[str, Any] | None]) -> dict[str, Any]:
        """The request with what it only names put in, as far as it is known by its id; to be read and translated."""
        ...

    def read(self, request: dict[str, Any]) -> Conversation:
        """What a request says; tolerant: what is malformed is kept as JSON text, and is the upstream's to refuse."""
        ...

    def asked(self, request: dict[str, Any]) -> Asked:
        """Which additions the caller asked for itself."""
        ...

    def with_additions(self, body: bytes, request: dict[str, Any], plain: bool) -> bytes:
        """The body for an upstream that can give token ids and logprobs; the caller's own bytes where it can't ask.

        Args:
            body: the caller's.
            request: what it says.
            plain: whether the upstream is one of our workers, which give logprobs as numbers alone where these are
                all that is wanted.
        """
        ...

    def answer(self, reply: dict[str, Any]) -> Answer:
        """The answer in a whole reply with a status below 400."""
        ...

    def stream(self) -> AnswerStream:
        """Reads along with a streamed reply."""
        ...

    def strip(self, body: dict[str, Any], asked: Asked) -> bool:
        """Takes out of a reply or a stream's event what the caller did not ask for; False if there was nothing."""
        ...

    def error_body(self, message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
        """An error of the gateway's own, as this protocol's clients expect it: JSON.

        Args:
            message: what to do.
            kind: its type.
            code: names it, where its type does not.
            param: field of the request that is to blame.
        """
        ...

    def error_event(self, message: str, kind: str) -> bytes:
        """The same as the last server-sent event of a stream that broke."""
        ...

    def translation(self, request: dict[str, Any], history: History | None) -> ChatTranslation | None:
        """The call as a chat completion; None for chat itself.

        Raises:
            BadRequest: it asks for what a chat completion cannot do (as a built-in web search).
        """
        ...


def failed(error: str, model: str = "") -> Answer:
    """The answer of a call that failed."""
    return Answer(new_message(role="assistant"), model=model, finish_reason="error", error=error)


def error_class(body: Any, status: int) -> str:
    """The class of an upstream's error: what its body says, else its HTTP status."""
    error = body.get("error", body) if isinstance(body, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and kind else f"http_{status}"
