"""Read the model calls of Logfire, whose attributes are its own. Pure.

Its first generation has the request and the answer as the clients' JSON in `request_data` and `response_data`, for the
Responses API as message events in `events`. Its second one has the conventions' messages beside them. Both report a
streamed call twice: as a span of the request, and after the stream as a log with the request and the answer.
"""

from typing import Any

from stepstream.services.gateway.otlp.attributes import Attributes, structure, text
from stepstream.services.gateway.otlp.messages import (
    CHOICE,
    EVENT_ROLES,
    chat_message,
    event_messages,
    finish_reason,
    merge_turns,
)
from stepstream.services.gateway.protocols.anthropic.blocks import prompt_messages
from stepstream.topics.events import Message

_SPAN_TYPE = "logfire.span_type"
_REQUEST, _RESPONSE, _EVENTS = "request_data", "response_data", "events"
_ANSWERED = (_RESPONSE, "gen_ai.output.messages", "gen_ai.response.id")
ATTRIBUTES = frozenset({_REQUEST, _EVENTS})
"""At least one of these is present on a model call."""


def is_call(a: Attributes) -> bool:
    """Return True for a model call without the conventions' operation name."""
    if _SPAN_TYPE not in a or "gen_ai.request.model" not in a or ATTRIBUTES.isdisjoint(a):
        return False
    request = request_of(a)
    return _EVENTS in a or "messages" in request or "prompt" in request


def is_repeated(a: Attributes, failed: bool) -> bool:
    """Return True if another span has the same call: a span that is still running, or a log after the stream."""
    kind = a.get(_SPAN_TYPE)
    if kind == "pending_span":
        return True
    if kind != "span" or failed or _REQUEST not in a:
        return False
    if _EVENTS in a:
        return bool(request_of(a).get("stream"))
    return not any(name in a for name in _ANSWERED)


def is_responses_api(a: Attributes) -> bool:
    """Return True for a call of the Responses API, one answer of which may be several messages."""
    if _EVENTS in a and _SPAN_TYPE in a:
        return True
    return _SPAN_TYPE in a and request_of(a).keys() == {"model", "stream"}


def duration_ns(a: Attributes) -> int:
    """Return how long the stream took that a log ends; 0: it is none."""
    seconds = a.get("duration")
    is_log = a.get(_SPAN_TYPE) == "log" and isinstance(seconds, float) and 0 < seconds < 1e9
    return int(seconds * 1e9) if is_log and seconds is not None else 0


def has_content(a: Attributes) -> bool:
    """Return True if the attributes have messages of Logfire's own."""
    return _SPAN_TYPE in a and not ATTRIBUTES.isdisjoint(a)


def request_of(a: Attributes) -> Attributes:
    """Return the client's request; empty: none."""
    request = structure(a.get(_REQUEST)) if _SPAN_TYPE in a else None
    return request if isinstance(request, dict) else {}


def usage_of(a: Attributes) -> Attributes:
    """Return the usage in the answer, under the conventions' names; empty: none."""
    usage = _answer(a).get("usage") if _SPAN_TYPE in a else None
    return {f"gen_ai.usage.{name}": value for name, value in usage.items()} if isinstance(usage, dict) else {}


def content_of(a: Attributes, scope: str) -> tuple[list[Message], Message | None, str]:
    """Return prompt, response and finish reason of a call.

    Args:
        a: attributes of the span.
        scope: name of the instrumentation, whose end tells the client.
    """
    if _EVENTS in a:
        return _content_of_events(structure(a[_EVENTS]))
    request, answer = request_of(a), _answer(a)
    if scope.endswith("anthropic"):
        prompt = prompt_messages(request)
    elif "prompt" in request:
        prompt = [chat_message({"content": request["prompt"]})]
    else:
        messages = request.get("messages")
        prompt = [chat_message(one if isinstance(one, dict) else {"content": one}) for one in _list(messages)]
    message = answer.get("message")
    if message is None and any(name in answer for name in ("text", "combined_chunk_content")):
        message = {"content": answer.get("text", answer.get("combined_chunk_content"))}
    response = chat_message(message, "assistant") if isinstance(message, dict) else None
    for call in response["tool_calls"] if response is not None and scope.endswith("anthropic") else ():
        call["arguments"] = _input(call["arguments"])
    return prompt, response, finish_reason(answer.get("finish_reason"))


def _content_of_events(events: Any) -> tuple[list[Message], Message | None, str]:
    """The events are those of the prompt, then the answer's: the assistant's at the end."""
    named = [(text(event.get("event.name")), event) for event in _list(events) if isinstance(event, dict)]
    known = [_known(name, event) for name, event in named]
    count = len(known)
    while count and EVENT_ROLES.get(known[count - 1][0]) == "assistant":
        count -= 1
    prompt, response, finish = event_messages(known[:count])
    answer, _, _ = event_messages(known[count:])
    return prompt, merge_turns(answer)[0] if answer else response, finish


def _known(name: str, event: Attributes) -> tuple[str, Attributes]:
    """Return an item that Logfire has no event for as a message with the item's JSON."""
    if name in EVENT_ROLES or name == CHOICE:
        return name, event
    role = text(event.get("role"))
    role = role if role in EVENT_ROLES.values() else "user"
    return f"gen_ai.{role}.message", {"role": role, "content": text(event.get("data", event.get("content")))}


def _answer(a: Attributes) -> Attributes:
    answer = structure(a.get(_RESPONSE))
    return answer if isinstance(answer, dict) else {}


def _input(arguments: str) -> str:
    """Return the arguments of a call, which Logfire wraps for Anthropic's client."""
    wrapped = structure(arguments)
    return text(wrapped["input"]) if isinstance(wrapped, dict) and wrapped.keys() == {"input"} else arguments


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
