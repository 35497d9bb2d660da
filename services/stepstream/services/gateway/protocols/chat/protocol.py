"""OpenAI's chat completions: what inference workers speak, and what the other protocols are translated into."""

from collections.abc import Callable
from typing import Any

import orjson

from stepstream.services.gateway.errors import error_body
from stepstream.services.gateway.protocols.base import (
    Answer,
    Asked,
    ChatTranslation,
    Conversation,
    History,
    ProtocolName,
    failed,
)
from stepstream.services.gateway.protocols.chat.stream import ChatStream, token_logprobs
from stepstream.services.gateway.protocols.messages import count, number, record_message
from stepstream.topics.events import Sampling, new_sampling

_HIDDEN = {"documents", "functions", "chat_template"}
"""Fields that servers of token ids put into the prompt, and no step has a place for."""
ADDITIONS = ("logprobs", "return_token_ids")
PLAIN = "plain_logprobs"
"""What our workers are asked for as well: logprobs as an array of numbers, which are read in a tenth of the time."""
_ADDED = {name: b',"%b":true' % name.encode() for name in (*ADDITIONS, PLAIN)}


class ChatCompletions:
    """The protocol of `/v1/chat/completions`."""

    name: ProtocolName = "chat"
    path = "/v1/chat/completions"

    def resolved(self, request: dict[str, Any], known: Callable[[str], dict[str, Any] | None]) -> dict[str, Any]:
        """The request itself: it names nothing."""
        return request

    def read(self, request: dict[str, Any]) -> Conversation:
        """What a request says; what is malformed is kept as JSON text, and is the upstream's to refuse."""
        raw, model = request.get("messages"), request.get("model")
        user = request.get("safety_identifier") or request.get("user")
        return Conversation(
            messages=[record_message(message) for message in raw] if isinstance(raw, list) else [],
            model=model if isinstance(model, str) else "",
            sampling=_sampling(request),
            stream=request.get("stream") is True,
            user=user if isinstance(user, str) else None,
            tools=request.get("tools"),
            hidden=not _HIDDEN.isdisjoint(request),
        )

    def asked(self, request: dict[str, Any]) -> Asked:
        """Which additions the caller asked for itself."""
        return Asked(bool(request.get("logprobs")), bool(request.get("return_token_ids")))

    def with_additions(self, body: bytes, request: dict[str, Any], plain: bool) -> bytes:
        """The body to send on: the caller's own bytes, asking for token ids and logprobs as well."""
        missing = [name for name in ADDITIONS if request.get(name) is not True]
        if plain and not request.get("logprobs"):  # the caller does not get to see them
            missing.append(PLAIN)
        if not missing:
            return body
        if request and request.keys().isdisjoint(missing):
            end = body.rindex(b"}")
            return b"%b%b}" % (body[:end], b"".join([_ADDED[name] for name in missing]))
        return orjson.dumps(request | dict.fromkeys(missing, True))

    def answer(self, reply: dict[str, Any]) -> Answer:
        """The answer in the body of a chat completion."""
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices:
            return failed("malformed_response")
        first, *others = [_alternative(reply, choice) for choice in choices]
        first.others = others
        first.usage_prompt_tokens, first.usage_response_tokens = usage_of(reply.get("usage"))
        return first

    def stream(self) -> ChatStream:
        """Reads along with a streamed reply."""
        return ChatStream()

    def strip(self, body: dict[str, Any], asked: Asked) -> bool:
        """Takes out of a reply or a chunk what the caller did not ask for; False if there was nothing."""
        changed = False
        if not asked.token_ids and "prompt_token_ids" in body:
            del body["prompt_token_ids"]
            changed = True
        choices = body.get("choices")
        if not isinstance(choices, list):
            return changed
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            if not asked.token_ids and "token_ids" in choice:
                del choice["token_ids"]
                changed = True
            if not asked.logprobs and choice.get("logprobs") is not None:
                choice["logprobs"] = None
                changed = True
        return changed

    def error_body(self, message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
        """An error of the gateway's own, as OpenAI's clients read it."""
        return error_body(message, kind, code, param)

    def error_event(self, message: str, kind: str) -> bytes:
        """The same as the last event of a stream that broke."""
        return b"data: %b\n\n" % error_body(message, kind)

    def translation(self, request: dict[str, Any], history: History | None) -> ChatTranslation | None:
        """None: it is a chat completion already."""
        return None


CHAT = ChatCompletions()


def usage_of(usage: Any) -> tuple[int | None, int | None]:
    """Tokens of prompt and response, as the upstream counted them."""
    if not isinstance(usage, dict):
        return None, None
    return count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))


def raw_messages(request: dict[str, Any], answer: Answer) -> list[dict[str, Any]]:
    """A chat request's messages and its answer, as the next request would repeat them."""
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


def _alternative(reply: dict[str, Any], choice: Any) -> Answer:
    """One of the choices of a chat completion."""
    if not isinstance(choice, dict):
        return failed("malformed_response")
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
    )


def _sampling(request: dict[str, Any]) -> Sampling:
    most = number(request.get("max_completion_tokens"))
    if most is None:
        most = number(request.get("max_tokens"))
    temperature, top_p = number(request.get("temperature")), number(request.get("top_p"))
    seed = number(request.get("seed"))
    return new_sampling(
        temperature=1.0 if temperature is None else float(temperature),
        top_p=1.0 if top_p is None else float(top_p),
        max_tokens=None if most is None or abs(most) >= 2**31 else int(most),
        seed=None if seed is None or abs(seed) >= 2**63 else int(seed),
    )
