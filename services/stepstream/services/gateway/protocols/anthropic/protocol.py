"""Implement `ModelProtocol` for Anthropic's Messages API, which has no token ids or logprobs. Pure."""

from collections.abc import Callable
from typing import Any

import orjson

from stepstream.services.gateway.protocols.anthropic.blocks import prompt_messages
from stepstream.services.gateway.protocols.anthropic.from_chat import AnthropicTranslation, error_event, event
from stepstream.services.gateway.protocols.anthropic.stream import AnthropicStream, answer_of
from stepstream.services.gateway.protocols.anthropic.to_chat import chat_request
from stepstream.services.gateway.protocols.base import (
    Answer,
    AnswerStream,
    Conversation,
    History,
    ProtocolName,
    RequestedAdditions,
)
from stepstream.services.gateway.protocols.messages import optional_text, text
from stepstream.topics.events import Sampling
from stepstream.topics.request_sampling import format_constraint, read_sampling


class Anthropic:
    """The protocol of `/v1/messages`."""

    name: ProtocolName = "anthropic"
    path = "/v1/messages"

    def resolve_references(
        self, request: dict[str, Any], lookup: Callable[[str], dict[str, Any] | None]
    ) -> dict[str, Any]:
        """Return the request: it has no references."""
        return request

    def read(self, request: dict[str, Any]) -> Conversation:
        """Parse a request."""
        metadata = request.get("metadata")
        return Conversation(
            messages=prompt_messages(request),
            model=text(request.get("model")),
            sampling=_sampling(request),
            stream=request.get("stream") is True,
            user=optional_text(metadata.get("user_id")) if isinstance(metadata, dict) else None,
            tools=request.get("tools") or None,
        )

    def requested_additions(self, request: dict[str, Any]) -> RequestedAdditions:
        """Return none: the API has no such fields."""
        return RequestedAdditions(logprobs=False, token_ids=False)

    def with_additions(self, body: bytes, request: dict[str, Any], plain: bool) -> bytes:
        """Return the caller's bytes."""
        return body

    def answer(self, reply: dict[str, Any]) -> Answer:
        """Return the answer in a whole message."""
        return answer_of(reply)

    def stream(self) -> AnswerStream:
        """Return a reader of one streamed message."""
        return AnthropicStream()

    def strip(self, body: dict[str, Any], requested: RequestedAdditions) -> bool:
        """Return False: nothing was added."""
        return False

    def error_body(self, message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
        """Return the JSON of a gateway error in Anthropic's form."""
        return orjson.dumps(error_event(message, kind))

    def error_event(self, message: str, kind: str) -> bytes:
        """Return the event that ends a broken stream."""
        return event(error_event(message, kind))

    def translation(self, request: dict[str, Any], history: History | None) -> AnthropicTranslation:
        """Translate the call to a chat completion; `history` is unused: each request holds the whole conversation."""
        return AnthropicTranslation(chat_request(request), request)


def _sampling(request: dict[str, Any]) -> Sampling:
    config, choice = request.get("output_config"), request.get("tool_choice")
    output_format = config.get("format") if isinstance(config, dict) else None
    constraint = format_constraint(request.get("output_format") if output_format is None else output_format)
    if not constraint and isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        constraint = "tool_choice"
    return read_sampling(request, max_tokens=request.get("max_tokens"), constraint=constraint)


ANTHROPIC = Anthropic()
