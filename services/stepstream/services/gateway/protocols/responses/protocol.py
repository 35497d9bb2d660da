"""Implement `ModelProtocol` for OpenAI's Responses API. Pure, but for the ids of new responses."""

from typing import Any

import orjson

from stepstream.services.gateway.errors import error_body
from stepstream.services.gateway.protocols.base import (
    Answer,
    AnswerStream,
    Conversation,
    History,
    ProtocolName,
    RequestedAdditions,
)
from stepstream.services.gateway.protocols.messages import record_message
from stepstream.services.gateway.protocols.responses.answer import ResponseStream, answer_of
from stepstream.services.gateway.protocols.responses.from_chat import (
    ResponseBuilder,
    final_status,
    logprobs_of,
    reasoning_of,
    refusal_part,
    text_part,
)
from stepstream.services.gateway.protocols.responses.items import (
    ItemLookup,
    Raw,
    chat_messages,
    items_of,
    referable_items,
    resolve_references,
)
from stepstream.services.gateway.protocols.responses.stream import EventStream
from stepstream.services.gateway.protocols.responses.to_chat import chat_request, custom_tools, instruction_items
from stepstream.topics.events import Sampling
from stepstream.topics.ids import new_event_id
from stepstream.topics.request_sampling import constraint_of, format_constraint, read_sampling


class ResponsesProtocol:
    """The protocol of `/v1/responses`."""

    name: ProtocolName = "responses"
    path = "/v1/responses"

    def resolve_references(self, request: dict[str, Any], lookup: ItemLookup) -> dict[str, Any]:
        """Return the request with items in place of their ids, if `lookup` knows them."""
        return resolve_references(request, lookup)

    def read(self, request: dict[str, Any]) -> Conversation:
        """Parse a request; malformed parts become JSON text."""
        instructions = chat_messages(instruction_items(request)).messages
        new = chat_messages(items_of(request.get("input"))).messages
        user, previous = request.get("safety_identifier") or request.get("user"), request.get("previous_response_id")
        return Conversation(
            messages=[record_message(message) for message in instructions + new],
            model=_string(request.get("model")),
            sampling=_sampling(request),
            stream=request.get("stream") is True,
            user=user if isinstance(user, str) else None,
            previous_response_id=previous if isinstance(previous, str) else None,
            instructions=len(instructions),
            tools=request.get("tools") or None,
        )

    def requested_additions(self, request: dict[str, Any]) -> RequestedAdditions:
        """Return all: nothing is added to these requests, so nothing is removed from replies."""
        return RequestedAdditions(logprobs=True, token_ids=True)

    def with_additions(self, body: bytes, request: dict[str, Any], plain: bool) -> bytes:
        """Return the caller's bytes: the API has logprobs, but no token ids."""
        return body

    def answer(self, reply: dict[str, Any]) -> Answer:
        """Return the answer in a `response` object."""
        return answer_of(reply)

    def stream(self) -> AnswerStream:
        """Return a reader of one stream's events."""
        return ResponseStream()

    def strip(self, body: dict[str, Any], requested: RequestedAdditions) -> bool:
        """Return False: nothing was added."""
        return False

    def error_body(self, message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
        """Return the JSON of a gateway error in OpenAI's form."""
        return error_body(message, kind, code, param)

    def error_event(self, message: str, kind: str) -> bytes:
        """Return the event `error`; its number is 0, since the number of earlier events is unknown."""
        event = {"type": "error", "code": kind, "message": message, "param": None, "sequence_number": 0}
        return b"event: error\ndata: %b\n\n" % orjson.dumps(event)

    def translation(
        self, request: dict[str, Any], history: History | None, seed: str | None = None
    ) -> "ResponsesTranslation":
        """Translate the call to a chat completion.

        Args:
            request: the call, references resolved.
            history: conversation of its `previous_response_id`; None: it has none, or an unknown one.
            seed: common part of all ids of the response; None: a new UUIDv7.

        Raises:
            BadRequest: a chat completion cannot do it.
        """
        chat = chat_request(request, items_of(request.get("input")), history)
        seed = seed or new_event_id().replace("-", "")
        return ResponsesTranslation(chat, ResponseBuilder(request, seed, custom_tools(request)))


class ResponsesTranslation:
    """One call as a chat completion: its request, and the conversion of the reply."""

    def __init__(self, request: dict[str, Any], builder: ResponseBuilder) -> None:
        self.request = request
        self.response_id = builder.id
        self._builder = builder
        self.items: list[dict[str, Any]] = []
        self._events = EventStream(builder)

    def reply(self, completion: dict[str, Any]) -> dict[str, Any]:
        """Convert a chat completion to a `response`.

        Raises:
            ValueError: it has no message.
        """
        self._builder.read_metadata(completion)
        choices = completion.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(first, dict) or not isinstance(first.get("message"), dict):
            raise ValueError("the upstream's reply is not a chat completion")
        status = final_status(first.get("finish_reason"))
        output = self._output(first, "completed" if status == "completed" else "incomplete")
        self.items = referable_items(output)
        return self._builder.response(status, output, completion.get("usage"))

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """Convert one chunk to events."""
        return self._events.feed(chunk)

    def keep_alive(self, comment: bytes) -> bytes:
        """Return the comment."""
        return comment

    def end(self, error: str | None = None) -> bytes:
        """Return the last events: `response.completed` or `.incomplete`; on error, `error` and `response.failed`."""
        out = self._events.end(error)
        self.items = referable_items(self._events.output)
        return out

    def _output(self, choice: Raw, status: str) -> list[Raw]:
        message = choice["message"]
        output: list[Raw] = []
        reasoning = reasoning_of(message)
        if reasoning:
            output.append(self._builder.reasoning(0, reasoning, status))
        calls = message.get("tool_calls") or []
        parts: list[Raw] = []
        if message.get("content"):
            logprobs = logprobs_of(choice) if self._builder.logprobs and not calls else []
            parts.append(text_part(message["content"], logprobs))
        if message.get("refusal"):
            parts.append(refusal_part(message["refusal"]))
        if parts:
            output.append(self._builder.message(len(output), parts, status))
        for call in calls:
            function = call.get("function") or {}
            name, arguments = function.get("name") or "", function.get("arguments") or ""
            output.append(self._builder.call(len(output), call.get("id") or "", name, arguments, status))
        return output


RESPONSES = ResponsesProtocol()


def _sampling(request: dict[str, Any]) -> Sampling:
    text_options = request.get("text")
    constraint = format_constraint(text_options.get("format")) if isinstance(text_options, dict) else ""
    constraint = constraint or constraint_of(request)
    return read_sampling(request, max_tokens=request.get("max_output_tokens"), constraint=constraint)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
