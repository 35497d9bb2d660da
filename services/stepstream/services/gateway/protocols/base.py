"""Define the interface of a protocol of model calls, and the records that all protocols share.

A protocol is used in two ways:

- The upstream speaks it: the caller's bytes are forwarded, and the protocol only reads them. `read` parses the request,
  `answer` or `stream` the reply.
- The upstream speaks only chat completions, as inference workers do: `translation` converts the request to a chat
  completion and the reply back, and the chat protocol reads both.

"Log" means the records of `stepstream.topics.events`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from stepstream.topics.events import Message, Sampling, new_message

ProtocolName = Literal["chat", "responses", "anthropic"]


@dataclass(slots=True)
class Conversation:
    """A request in the log's form."""

    messages: list[Message]
    """The prompt: system prompt or instructions first, tool results as messages of role `tool`."""
    model: str
    sampling: Sampling
    stream: bool = False
    user: str | None = None
    """The person, from `user`, `safety_identifier` or `metadata.user_id`; None: not given."""
    previous_response_id: str | None = None
    """Responses API: the response that the call continues; `messages` then holds only the new ones."""
    instructions: int = 0
    """Number of leading messages that are `instructions` of this call only.

    A call that continues from its response has its own. They precede the conversation without being part of it."""
    tools: Any = None
    """Offered tools in the upstream's form; None: none, or unknown."""
    has_unrecorded_text: bool = False
    """True if the model sees text besides messages and tools, which no step records."""
    _encoded_tools: tuple[bytes, int] | None = None

    def encoded_tools(self) -> tuple[bytes, int]:
        """Return the offered tools as JSON and its hash, valid in this process; empty and 0 without tools.

        Python's own hash is keyed and costs a quarter of a cryptographic digest, which matters once per call.

        Raises:
            TypeError: they are nested too deeply.
        """
        if self._encoded_tools is None:
            text = orjson.dumps(self.tools) if self.tools else b""
            self._encoded_tools = text, (hash(text) or 1) if text else 0
        return self._encoded_tools


@dataclass(slots=True)
class Answer:
    """The recorded part of a reply."""

    message: Message
    model: str = ""
    finish_reason: str = ""
    """One of `stop`, `length`, `tool_calls`, `content_filter`, `error`, as in chat completions; empty: not ended."""
    response_id: str = ""
    prompt_token_ids: Any = None
    token_ids: Any = None
    logprobs: list[float] | None = None
    weight_versions: Any = None
    sampling_mask: Any = None
    prefix: str = ""
    """How a worker continued the recorded tokens: `splice` or `none`; empty: it does not say."""
    prefix_reason: str = ""
    """Why it did not."""
    error: str | None = None
    """Class of the error; None: the call succeeded."""
    alternatives: list["Answer"] = field(default_factory=list)
    """The other choices (`n` above 1), in their order."""
    usage_prompt_tokens: int | None = None
    usage_response_tokens: int | None = None
    """The upstream's counts, over all choices."""
    items: list[dict[str, Any]] = field(default_factory=list)
    """Responses API: items in the caller's form that a later call may refer to by id."""

    def all_choices(self) -> list["Answer"]:
        """Return this answer and its alternatives."""
        return [self, *self.alternatives]


@dataclass(frozen=True, slots=True)
class RequestedAdditions:
    """The additions to the upstream's request that the caller requested too, and therefore receives."""

    logprobs: bool
    token_ids: bool
    model: str = ""
    """Name of the model in the answer, if the upstream knows it by another; empty: the upstream's."""


class AnswerStream(Protocol):
    """Collects the events of one streamed reply into an answer."""

    def add(self, event: dict[str, Any]) -> bool:
        """Add the JSON of one event's `data`; return True if it contains output of the model."""
        ...

    def answer(self) -> Answer:
        """Return the answer so far; before the end, without finish reason or error."""
        ...


class ChatTranslation(Protocol):
    """One call of another protocol as a chat completion."""

    request: dict[str, Any]
    """Body for `/v1/chat/completions`."""
    items: list[dict[str, Any]]
    """`Answer.items`, after `reply` or `end`."""

    def reply(self, completion: dict[str, Any]) -> dict[str, Any]:
        """Convert a chat completion to the reply.

        Raises:
            ValueError: it is none.
        """
        ...

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """Convert one chunk of a stream to complete server-sent events, with `event:` and blank lines."""
        ...

    def keep_alive(self, comment: bytes) -> bytes:
        """Return what keeps the caller's connection open when the upstream sends a comment for that."""
        ...

    def end(self, error: str | None = None) -> bytes:
        """Return the events that end a stream; with `error`, those that report it."""
        ...


@dataclass(slots=True)
class History:
    """The conversation that replaces `previous_response_id`, for an upstream that keeps none itself."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    """Raw chat messages of the whole conversation, up to and including that response."""
    trajectory_id: str = ""
    """Trajectory of that response."""
    participants: dict[str, int] = field(default_factory=dict)
    """Persons in the conversation, with the time of their first call: microseconds since the Unix epoch."""


class ModelProtocol(Protocol):
    """Interface of a protocol."""

    name: ProtocolName
    path: str
    """Path of its calls at gateway and upstream, as `/v1/chat/completions`."""

    def resolve_references(
        self, request: dict[str, Any], lookup: Callable[[str], dict[str, Any] | None]
    ) -> dict[str, Any]:
        """Return the request with items in place of their ids, if `lookup` knows them; call it before all others."""
        ...

    def read(self, request: dict[str, Any]) -> Conversation:
        """Parse a request; malformed parts become JSON text, since the upstream has to reject them."""
        ...

    def requested_additions(self, request: dict[str, Any]) -> RequestedAdditions:
        """Return the additions that the caller requests itself."""
        ...

    def with_additions(self, body: bytes, request: dict[str, Any], plain: bool) -> bytes:
        """Return a body that also requests token ids and logprobs; unchanged if the protocol has no such fields.

        Args:
            body: the caller's body.
            request: its parsed content.
            plain: True if the upstream is an inference worker, which can return logprobs as numbers alone.
        """
        ...

    def answer(self, reply: dict[str, Any]) -> Answer:
        """Return the answer in a whole reply with a status below 400."""
        ...

    def stream(self) -> AnswerStream:
        """Return a reader of one streamed reply."""
        ...

    def strip(self, body: dict[str, Any], requested: RequestedAdditions) -> bool:
        """Remove additions that the caller did not request from a reply or event; return True if it changed."""
        ...

    def error_body(self, message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
        """Return the JSON of a gateway error, as this protocol's clients expect it.

        Args:
            message: fault and remedy.
            kind: type of the error.
            code: more specific than the type.
            param: request field at fault.
        """
        ...

    def error_event(self, message: str, kind: str) -> bytes:
        """Return the error as the last server-sent event of a broken stream."""
        ...

    def translation(self, request: dict[str, Any], history: History | None) -> ChatTranslation | None:
        """Translate the call to a chat completion; None for chat itself.

        Raises:
            BadRequest: a chat completion cannot do it (as a built-in web search).
        """
        ...


def failed_answer(error: str, model: str = "") -> Answer:
    """Return the answer of a failed call."""
    return Answer(new_message(role="assistant"), model=model, finish_reason="error", error=error)


def error_class(body: Any, status: int) -> str:
    """Return the class of an upstream's error: the type in its body, else its HTTP status."""
    error = body.get("error", body) if isinstance(body, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and kind else f"http_{status}"
