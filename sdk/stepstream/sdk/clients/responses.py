"""Read OpenAI's Responses API. Pure."""

from collections.abc import Iterable
from typing import Any

from stepstream.sdk.clients.call import Answer, AnswerStream, Json
from stepstream.sdk.messages import plain_data

_FROM_MODEL = ("function_call", "custom_tool_call", "reasoning")
_FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}


class Responses:
    """The Responses API, where one answer is several items."""

    def prompt(self, request: Json) -> list[Any]:
        """Return the messages of a request; those before `previous_response_id` are unknown."""
        instructions, given = request.get("instructions"), request.get("input") or ()
        messages: list[Any] = [{"role": "system", "content": instructions}] if instructions else []
        if isinstance(given, str):
            return [*messages, {"role": "user", "content": given}]
        run: list[Json] = []
        for item in map(plain_data, given):
            if _is_from_model(item):
                run.append(item)
                continue
            if run:
                messages.append(_assistant(run))
                run = []
            messages.append(_other(item))
        return [*messages, _assistant(run)] if run else messages

    def max_tokens(self, request: Json) -> Any:
        """Return the token limit of a request."""
        return request.get("max_output_tokens")

    def answer(self, reply: Json) -> Answer:
        """Read a response."""
        output, usage = reply.get("output") or [], reply.get("usage") or {}
        reason = (reply.get("incomplete_details") or {}).get("reason")
        calls = any(item.get("type") in _FROM_MODEL[:2] for item in output)
        return Answer(
            _assistant(output),
            _FINISH.get(reason, reason) if reason else "tool_calls" if calls else "stop",
            reply.get("model") or "",
            usage.get("input_tokens"),
            usage.get("output_tokens"),
        )

    def stream(self) -> AnswerStream:
        """Return an empty stream."""
        return ResponseStream()


class ResponseStream:
    """Collects events. The last one has the whole response; a stream that is cut before has its finished items."""

    def __init__(self) -> None:
        self._response: Json | None = None
        self._items: dict[int, Json] = {}

    def add(self, event: Json) -> bool:
        """Add an event; return True if it has output of the model."""
        if isinstance(event.get("response"), dict):
            self._response = event["response"]
        if event.get("type") == "response.output_item.done":
            self._items[event["output_index"]] = event["item"]
        return str(event.get("type")).endswith(".delta")

    def answer(self) -> Answer | None:
        """Return the answer so far."""
        if self._response is None:
            return None
        items = [self._items[index] for index in sorted(self._items)]
        is_whole = self._response.get("status") != "in_progress"
        answer = Responses().answer(self._response if is_whole else {**self._response, "output": items})
        answer.finish_reason = answer.finish_reason if is_whole else ""
        return answer


def _is_from_model(item: Any) -> bool:
    return isinstance(item, dict) and (item.get("type") in _FROM_MODEL or item.get("role") == "assistant")


def _assistant(items: Iterable[Any]) -> Json:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[Json] = []
    for item in items:
        kind = item.get("type")
        if kind == "reasoning":
            reasoning += [part.get("text") or "" for part in (item.get("summary") or item.get("content") or ())]
        elif kind == "function_call":
            calls.append(item)
        elif kind == "custom_tool_call":
            custom = {"name": item.get("name"), "input": item.get("input")}
            calls.append({"id": item.get("call_id"), "custom": custom})
        elif isinstance(item.get("content"), str):
            texts.append(item["content"])
        else:
            texts += [part.get("text") or part.get("refusal") or "" for part in item.get("content") or ()]
    return {
        "role": "assistant",
        "content": "".join(texts),
        "tool_calls": calls,
        "reasoning": "\n".join(reasoning) or None,
    }


def _other(item: Any) -> Any:
    if isinstance(item, dict) and item.get("type") == "custom_tool_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    return item
