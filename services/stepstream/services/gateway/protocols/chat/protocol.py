"""Read OpenAI's Chat Completions: the protocol of inference workers, and the target of translations. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from stepstream.services.gateway.errors import error_body
from stepstream.services.gateway.protocols.base import (
    Answer,
    ChatTranslation,
    Conversation,
    History,
    ProtocolName,
    RequestedAdditions,
    failed_answer,
)
from stepstream.services.gateway.protocols.chat.stream import ChatStream, text_of, token_logprobs
from stepstream.services.gateway.protocols.messages import count, record_message
from stepstream.topics.events import Sampling
from stepstream.topics.request_sampling import constraint_of, number, read_sampling

_HIDDEN = {"documents", "functions", "chat_template"}
"""Request fields whose text servers put into the prompt, and which no step records."""
ADDITIONS = ("logprobs", "return_token_ids")
PLAIN = "plain_logprobs"
"""Extra field for inference workers: logprobs as an array of numbers, which parses ten times as fast."""
_ADDED = {name: b',"%b":true' % name.encode() for name in (*ADDITIONS, PLAIN)}


PREFIX, PREFIX_REASON = "stepstream_prefix", "stepstream_prefix_reason"
"""Fields of a worker's answer about the prefix that it got. `PREFIX` is also the request's field."""
STARTED_AT = "stepstream_started_at_us"
MASK = "stepstream_sampling_mask"
"""Field that asks a worker for sampling masks; its value is the largest number of ids of one token."""


class ChatCompletions:
    """The protocol of `/v1/chat/completions`."""

    name: ProtocolName = "chat"
    path = "/v1/chat/completions"

    def resolve_references(
        self, request: dict[str, Any], lookup: Callable[[str], dict[str, Any] | None]
    ) -> dict[str, Any]:
        """Return the request: it has no references."""
        return request

    def read(self, request: dict[str, Any]) -> Conversation:
        """Parse a request; malformed parts become JSON text, since the upstream has to reject them."""
        raw, model = request.get("messages"), request.get("model")
        user = request.get("safety_identifier") or request.get("user")
        return Conversation(
            messages=[record_message(message) for message in raw] if isinstance(raw, list) else [],
            model=model if isinstance(model, str) else "",
            sampling=self.read_sampling(request),
            stream=request.get("stream") is True,
            user=user if isinstance(user, str) else None,
            tools=request.get("tools"),
            has_unrecorded_text=not _HIDDEN.isdisjoint(request),
        )

    def read_sampling(self, request: dict[str, Any]) -> Sampling:
        """Return the sampling of a request."""
        limit = number(request.get("max_completion_tokens"))
        if limit is None:
            limit = number(request.get("max_tokens"))
        return read_sampling(request, max_tokens=limit, constraint=constraint_of(request), seed=request.get("seed"))

    def requested_additions(self, request: dict[str, Any]) -> RequestedAdditions:
        """Return the additions that the caller requests itself."""
        return RequestedAdditions(bool(request.get("logprobs")), bool(request.get("return_token_ids")))

    def with_additions(self, body: bytes, request: dict[str, Any], plain: bool) -> bytes:
        """Return the caller's bytes with fields that request token ids and logprobs."""
        missing = [name for name in ADDITIONS if request.get(name) is not True]
        if plain and not request.get("logprobs"):  # the caller does not receive them
            missing.append(PLAIN)
        if not missing:
            return body
        if request and request.keys().isdisjoint(missing):
            end = body.rindex(b"}")
            return b"%b%b}" % (body[:end], b"".join([_ADDED[name] for name in missing]))
        return orjson.dumps(request | dict.fromkeys(missing, True))

    def answer(self, reply: dict[str, Any]) -> Answer:
        """Return the answer in a chat completion."""
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices:
            return failed_answer("malformed_response")
        first, *alternatives = [_choice_answer(reply, choice) for choice in choices]
        first.alternatives = alternatives
        first.usage_prompt_tokens, first.usage_response_tokens = usage_of(reply.get("usage"))
        return first

    def stream(self) -> ChatStream:
        """Return a reader of one streamed reply."""
        return ChatStream()

    def strip(self, body: dict[str, Any], requested: RequestedAdditions) -> bool:
        """Remove additions that the caller did not request from a reply or chunk; return True if it changed."""
        changed = False
        if PREFIX in body:
            del body[PREFIX]
            body.pop(PREFIX_REASON, None)
            changed = True
        if not requested.token_ids and "prompt_token_ids" in body:
            del body["prompt_token_ids"]
            changed = True
        choices = body.get("choices")
        if not isinstance(choices, list):
            return changed
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            if not requested.token_ids and "token_ids" in choice:
                del choice["token_ids"]
                changed = True
            if "sampling_mask" in choice:
                del choice["sampling_mask"]
                changed = True
            if not requested.logprobs and choice.get("logprobs") is not None:
                choice["logprobs"] = None
                changed = True
        return changed

    def error_body(self, message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
        """Return the JSON of a gateway error in OpenAI's form."""
        return error_body(message, kind, code, param)

    def error_event(self, message: str, kind: str) -> bytes:
        """Return the error as the last event of a broken stream."""
        return b"data: %b\n\n" % error_body(message, kind)

    def translation(self, request: dict[str, Any], history: History | None) -> ChatTranslation | None:
        """Return None: the call is a chat completion already."""
        return None


CHAT = ChatCompletions()


def with_worker_fields(
    body: bytes,
    request: dict[str, Any],
    started_us: int,
    prefix_ids: Sequence[int] = (),
    prefix_messages: int = 0,
    mask_ids: int = 0,
) -> bytes:
    """Return a body with the fields that only inference workers read.

    Args:
        body: the request, as JSON.
        request: its parsed content, before additions.
        started_us: time of the trajectory's first call, for templates that render a date.
        prefix_ids: token ids of the step before, prompt and response; empty: unknown.
        prefix_messages: number of leading messages that they cover.
        mask_ids: largest number of ids of a token's sampling mask; 0: ask for none.
    """
    fields: dict[str, Any] = {STARTED_AT: started_us}
    if prefix_ids:
        fields[PREFIX] = {"token_ids": prefix_ids, "messages": prefix_messages}
    if mask_ids:
        fields[MASK] = mask_ids
    if request and request.keys().isdisjoint(fields):
        return b"%b,%b" % (body[: body.rindex(b"}")], orjson.dumps(fields)[1:])
    return orjson.dumps(orjson.loads(body) | fields)


def usage_of(usage: Any) -> tuple[int | None, int | None]:
    """Return the upstream's token counts of prompt and response."""
    if not isinstance(usage, dict):
        return None, None
    return count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))


def raw_messages(request: dict[str, Any], answer: Answer) -> list[dict[str, Any]]:
    """Return a chat request's messages and the answer, as the next request would repeat them."""
    content, calls = answer.message["content"], answer.message["tool_calls"]
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if answer.message["reasoning"]:
        message["reasoning_content"] = answer.message["reasoning"]
    if calls:
        message["tool_calls"] = [
            {"id": c["call_id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls
        ]
    return [*request["messages"], message]


def _choice_answer(reply: dict[str, Any], choice: Any) -> Answer:
    """Return the answer in one choice of a chat completion."""
    if not isinstance(choice, dict):
        return failed_answer("malformed_response")
    model, finish_reason, response_id = reply.get("model"), choice.get("finish_reason"), reply.get("id")
    return Answer(
        message=record_message(choice.get("message") or {"role": "assistant"}),
        model=model if isinstance(model, str) else "",
        finish_reason=finish_reason if isinstance(finish_reason, str) else "",
        response_id=response_id if isinstance(response_id, str) else "",
        prompt_token_ids=reply.get("prompt_token_ids"),
        token_ids=choice.get("token_ids"),
        logprobs=token_logprobs(choice.get("logprobs")),
        weight_versions=choice.get("weight_versions"),
        sampling_mask=choice.get("sampling_mask"),
        prefix=text_of(reply.get(PREFIX)),
        prefix_reason=text_of(reply.get(PREFIX_REASON)),
    )
