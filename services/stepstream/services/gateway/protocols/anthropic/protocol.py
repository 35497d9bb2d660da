"""Anthropic's Messages API. It has no token ids or logprobs to ask for: bytes go through as they are."""

from collections.abc import Callable
from typing import Any

import orjson

from stepstream.services.gateway.protocols.anthropic.blocks import prompt_messages
from stepstream.services.gateway.protocols.anthropic.from_chat import AnthropicTranslation, error_event, event
from stepstream.services.gateway.protocols.anthropic.stream import StreamedMessage, answer_of
from stepstream.services.gateway.protocols.anthropic.to_chat import chat_request
from stepstream.services.gateway.protocols.base import Answer, AnswerStream, Asked, Conversation, History, ProtocolName
from stepstream.services.gateway.protocols.messages import number, optional_text, text
from stepstream.topics.events import Sampling, new_sampling


class Anthropic:
    """See `ModelProtocol`."""

    name: ProtocolName = "anthropic"
    path = "/v1/messages"

    def resolved(self, request: dict[str, Any], known: Callable[[str], dict[str, Any] | None]) -> dict[str, Any]:
        """The request itself: it names nothing."""
        return request

    def read(self, request: dict[str, Any]) -> Conversation:
        """What a request says."""
        metadata = request.get("metadata")
        return Conversation(
            messages=prompt_messages(request),
            model=text(request.get("model")),
            sampling=_sampling(request),
            stream=request.get("stream") is True,
            user=optional_text(metadata.get("user_id")) if isinstance(metadata, dict) else None,
            tools=request.get("tools") or None,
        )

    def asked(self, request: dict[str, Any]) -> Asked:
        """Nothing: there is nothing to ask for."""
        return Asked(logprobs=False, token_ids=False)

    def with_additions(self, body: bytes, request: dict[str, Any], plain: bool) -> bytes:
        """The caller's own bytes."""
        return body

    def answer(self, reply: dict[str, Any]) -> Answer:
        """The answer in a whole message."""
        return answer_of(reply)

    def stream(self) -> AnswerStream:
        """Reads along with a streamed message."""
        return StreamedMessage()

    def strip(self, body: dict[str, Any], asked: Asked) -> bool:
        """There is nothing to take out."""
        return False

    def error_body(self, message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
        """The body of an error."""
        return orjson.dumps(error_event(message, kind))

    def error_event(self, message: str, kind: str) -> bytes:
        """The event that ends a broken stream."""
        return event(error_event(message, kind))

    def translation(self, request: dict[str, Any], history: History | None) -> AnthropicTranslation:
        """The call as a chat completion; `history` is of no use: each request holds the whole conversation."""
        return AnthropicTranslation(chat_request(request), request)


def _sampling(request: dict[str, Any]) -> Sampling:
    temperature, top_p, most = (number(request.get(name)) for name in ("temperature", "top_p", "max_tokens"))
    return new_sampling(
        temperature=1.0 if temperature is None else float(temperature),
        top_p=1.0 if top_p is None else float(top_p),
        max_tokens=None if most is None or abs(most) >= 2**31 else int(most),
    )


ANTHROPIC = Anthropic()
