"""OpenAI's Responses API: `/v1/responses`."""

from typing import Any

import orjson

from stepstream.services.gateway.errors import error_body
from stepstream.services.gateway.protocols.base import (
    Answer,
    AnswerStream,
    Asked,
    Conversation,
    History,
    ProtocolName,
)
from stepstream.services.gateway.protocols.messages import number, record_message
from stepstream.services.gateway.protocols.responses.answer import ResponseStream, answer_of
from stepstream.services.gateway.protocols.responses.from_chat import (
    Responder,
    final_status,
    logprobs_of,
    reasoning_of,
    refusal_part,
    text_part,
)
from stepstream.services.gateway.protocols.responses.items import (
    Known,
    Raw,
    chat_messages,
    items_of,
    nameable,
    resolved,
)
from stepstream.services.gateway.protocols.responses.stream import EventStream
from stepstream.services.gateway.protocols.responses.to_chat import chat_request, custom_tools, instruction_items
from stepstream.topics.events import Sampling, new_sampling
from stepstream.topics.ids import new_event_id


class ResponsesProtocol:
    """Reads and translates."""

    name: ProtocolName = "responses"
    path = "/v1/responses"

    def resolved(self, request: dict[str, Any], known: Known) -> dict[str, Any]:
        """The request with the items that it only names put in."""
        return resolved(request, known)

    def read(self, request: dict[str, Any]) -> Conversation:
        """What a request says; tolerant of everything."""
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

    def asked(self, request: dict[str, Any]) -> Asked:
        """Everything: nothing is added to these requests, so nothing is taken out."""
        return Asked(logprobs=True, token_ids=True)

    def with_additions(self, body: bytes, request: dict[str, Any], plain: bool) -> bytes:
        """The caller's own bytes: the API gives logprobs, but no token ids to go with them."""
        return body

    def answer(self, reply: dict[str, Any]) -> Answer:
        """The answer in a `response` object."""
        return answer_of(reply)

    def stream(self) -> AnswerStream:
        """Reads along with a stream's events."""
        return ResponseStream()

    def strip(self, body: dict[str, Any], asked: Asked) -> bool:
        """False: nothing was added."""
        return False

    def error_body(self, message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
        """OpenAI's error object."""
        return error_body(message, kind, code, param)

    def error_event(self, message: str, kind: str) -> bytes:
        """The event `error`. How many events came before is not known here, so it has the number 0."""
        event = {"type": "error", "code": kind, "message": message, "param": None, "sequence_number": 0}
        return b"event: error\ndata: %b\n\n" % orjson.dumps(event)

    def translation(
        self, request: dict[str, Any], history: History | None, seed: str | None = None
    ) -> "ResponsesTranslation":
        """The call as a chat completion.

        Args:
            request: as it came.
            history: what its `previous_response_id` stands for; None if it has none, or one that is not known.
            seed: what all ids of the response are made from; a new UUIDv7 without it.

        Raises:
            BadRequest: it asks for what a chat completion cannot do.
        """
        chat = chat_request(request, items_of(request.get("input")), history)
        made_from = seed or new_event_id().replace("-", "")
        return ResponsesTranslation(chat, Responder(request, made_from, custom_tools(request)))


class ResponsesTranslation:
    """One call made as a chat completion: the request for it, and the way back."""

    def __init__(self, request: dict[str, Any], responder: Responder) -> None:
        self.request = request
        self.response_id = responder.id
        self._make = responder
        self.items: list[dict[str, Any]] = []
        self._events = EventStream(responder)

    def reply(self, completion: dict[str, Any]) -> dict[str, Any]:
        """The `response` that a chat completion amounts to."""
        self._make.learn(completion)
        choices = completion.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(first, dict):
            error = {"code": "server_error", "message": "the upstream's reply is not a chat completion"}
            return self._make.response("failed", [], error=error)
        status = final_status(first.get("finish_reason"))
        output = self._output(first, "completed" if status == "completed" else "incomplete")
        self.items = nameable(output)
        return self._make.response(status, output, completion.get("usage"))

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """The events of one chunk."""
        return self._events.feed(chunk)

    def end(self, error: str | None = None) -> bytes:
        """The events that end the stream: `response.completed` or `.incomplete`, or `error` and `response.failed`."""
        out = self._events.end(error)
        self.items = nameable(self._events.output)
        return out

    def _output(self, choice: Raw, status: str) -> list[Raw]:
        message = choice.get("message") or {}
        output: list[Raw] = []
        thought = reasoning_of(message)
        if thought:
            output.append(self._make.reasoning(0, thought, status))
        calls = message.get("tool_calls") or []
        parts: list[Raw] = []
        if message.get("content"):
            logprobs = logprobs_of(choice) if self._make.logprobs and not calls else []
            parts.append(text_part(message["content"], logprobs))
        if message.get("refusal"):
            parts.append(refusal_part(message["refusal"]))
        if parts:
            output.append(self._make.message(len(output), parts, status))
        for call in calls:
            function = call.get("function") or {}
            name, arguments = function.get("name") or "", function.get("arguments") or ""
            output.append(self._make.call(len(output), call.get("id") or "", name, arguments, status))
        return output


RESPONSES = ResponsesProtocol()


def _sampling(request: dict[str, Any]) -> Sampling:
    temperature, top_p, most = (number(request.get(name)) for name in ("temperature", "top_p", "max_output_tokens"))
    return new_sampling(
        temperature=1.0 if temperature is None else float(temperature),
        top_p=1.0 if top_p is None else float(top_p),
        max_tokens=None if most is None or abs(most) >= 2**31 else int(most),
    )


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
