"""Read requests of OpenAI's chat protocol with vLLM's extensions; refuse what the engine does not honour."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from stepstream.services.inference.chat_messages import read_messages
from stepstream.services.inference.chat_template import RESERVED, Message, RenderOptions
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import SamplingParams
from stepstream.services.inference.prompt_splice import Prefix
from stepstream.services.inference.request_fields import (
    MASK,
    MAX_MASK_IDS,
    RequestError,
    read_model,
    read_number,
    read_object,
)
from stepstream.services.inference.stop_strings import StopStrings

_MAX_STOPS, _MAX_RESPONSES = 16, 128
_MAX_TIME_US = 253_402_300_799_000_000  # the end of the year 9999


_SAMPLING = (
    *(
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "logit_bias",
        "seed",
        "stop",
        "n",
    ),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_OURS = ("plain_logprobs", "return_token_ids", MASK, "stepstream_prefix", "stepstream_started_at_us")
_CONVERSATION = ("model", "messages", "tools", "tool_choice", "chat_template_kwargs")
_REPLY = ("stream", "stream_options", "logprobs")
_HONOURED = frozenset([*_CONVERSATION, *_SAMPLING, *_REPLY, *_OURS])
_WITHOUT_EFFECT = frozenset(
    ("user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier", "store", "parallel_tool_calls")
)
"""Fields that never change what is sampled, or only allow it: one call a response is allowed as several are."""
_NEUTRAL: dict[str, Any] = {
    "best_of": 1,
    "response_format": {"type": "text"},
    "length_penalty": 1,
    "add_generation_prompt": True,
    "include_reasoning": True,
}
"""Values besides null, false, 0 and empty ones that ask for nothing."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The validated fields of a request."""

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    tool_names: frozenset[str]
    options: RenderOptions
    prefix: Prefix | None
    """Recorded ids that the prompt continues; None: render the whole conversation."""
    params: SamplingParams
    """Sampling without the request's limits; see `sampling`."""
    max_tokens: int | None
    stop: tuple[str, ...]
    n: int
    """Number of responses."""
    stream: bool
    include_usage: bool
    logprobs: bool
    plain_logprobs: bool
    """True: write logprobs as plain numbers, at a tenth of the cost of OpenAI's objects on both sides."""
    return_token_ids: bool

    def sampling(self, room: int, tokenizer: ChatTokenizer, number: int) -> SamplingParams:
        """Return the engine's parameters for response `number`, from 0; `room`: tokens left in the context."""
        seed = self.params.seed
        return replace(
            self.params,
            max_tokens=min(self.max_tokens or room, room),
            seed=None if seed is None else seed + number,
            stops=StopStrings(self.stop, tokenizer) if self.stop else None,
        )


def read_request(body: bytes) -> ChatRequest:
    """Parse and validate a request.

    Raises:
        RequestError: 400, names the field that is invalid, or that this engine does not honour.
    """
    fields = read_object(body)
    refuse_unsupported(fields)
    choice = fields.get("tool_choice") or "auto"
    if choice not in ("auto", "none"):
        raise RequestError(
            400, "'tool_choice' must be auto or none: the torch engine cannot force a call", param="tool_choice"
        )
    tools = _tools(fields.get("tools") or [])
    names = frozenset(tool["function"]["name"] for tool in tools) if choice == "auto" else frozenset()
    limit = "max_completion_tokens" if fields.get("max_completion_tokens") is not None else "max_tokens"
    return ChatRequest(
        model=read_model(fields.get("model")),
        messages=read_messages(fields.get("messages")),
        tools=tools,
        tool_names=names,
        options=_options(fields),
        prefix=_prefix(fields),
        params=_params(fields),
        max_tokens=read_number(fields, limit, int, 1, 2**31),
        stop=_stop(fields.get("stop")),
        n=read_number(fields, "n", int, 1, _MAX_RESPONSES) or 1,
        stream=bool(fields.get("stream")),
        include_usage=_include_usage(fields.get("stream_options")),
        logprobs=bool(fields.get("logprobs")),
        plain_logprobs=bool(fields.get("plain_logprobs")),
        return_token_ids=bool(fields.get("return_token_ids")),
    )


def refuse_unsupported(fields: Mapping[str, Any]) -> None:
    """Raise RequestError for the first field that asks for something this engine does not honour."""
    for name, value in fields.items():
        if name in _HONOURED or name in _WITHOUT_EFFECT or not value or value == _NEUTRAL.get(name):
            continue
        raise RequestError(
            400, f"'{name}' is not supported by the torch engine: leave it out, or serve with vLLM", param=name
        )


def _params(fields: dict[str, Any]) -> SamplingParams:
    def number(name: str, low: float, high: float, default: float) -> float:
        value = read_number(fields, name, float, low, high)
        return default if value is None else float(value)

    top_k = read_number(fields, "top_k", int, -1, 2**31)
    return SamplingParams(
        max_tokens=1,
        temperature=number("temperature", 0, 2, 1.0),
        top_p=number("top_p", 1e-9, 1, 1.0),
        top_k=max(top_k or 0, 0),
        min_p=number("min_p", 0, 1, 0.0),
        presence_penalty=number("presence_penalty", -2, 2, 0.0),
        frequency_penalty=number("frequency_penalty", -2, 2, 0.0),
        repetition_penalty=number("repetition_penalty", 1e-9, 1e9, 1.0),
        logit_bias=_logit_bias(fields.get("logit_bias")),
        seed=read_number(fields, "seed", int, -(2**62), 2**62),
        stream=bool(fields.get("stream")),
        mask_ids=read_number(fields, MASK, int, 0, MAX_MASK_IDS) or 0,
    )


def _logit_bias(bias: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = tuple(sorted((int(token), float(value)) for token, value in (bias or {}).items()))
    except (AttributeError, TypeError, ValueError) as error:
        raise RequestError(
            400, "'logit_bias' must be an object of token ids and numbers", param="logit_bias"
        ) from error
    if not all(token >= 0 and -100 <= value <= 100 for token, value in pairs):
        raise RequestError(400, "'logit_bias' must have token ids and numbers from -100 to 100", param="logit_bias")
    return pairs


def _options(fields: dict[str, Any]) -> RenderOptions:
    arguments = fields.get("chat_template_kwargs") or {}
    if not isinstance(arguments, dict) or RESERVED & set(arguments):
        raise RequestError(
            400,
            f"'chat_template_kwargs' must be an object without {', '.join(sorted(RESERVED))}",
            param="chat_template_kwargs",
        )
    started = read_number(fields, "stepstream_started_at_us", int, 0, _MAX_TIME_US)
    return RenderOptions(None if started is None else datetime.fromtimestamp(started / 1e6, UTC), arguments)


def _prefix(fields: dict[str, Any]) -> Prefix | None:
    if fields.get("stepstream_prefix") is None:
        return None
    try:
        return Prefix.read(fields["stepstream_prefix"])
    except ValueError as error:
        raise RequestError(400, f"'stepstream_prefix' {error}", param="stepstream_prefix") from error


def _stop(stop: Any) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(strings, list) or len(strings) > _MAX_STOPS:
        raise RequestError(400, f"'stop' must be a string or a list of at most {_MAX_STOPS}", param="stop")
    if not all(isinstance(each, str) and each for each in strings):
        raise RequestError(400, "each of 'stop' must be a non-empty string", param="stop")
    return tuple(strings)


def _include_usage(options: Any) -> bool:
    if not isinstance(options, dict | None):
        raise RequestError(400, "'stream_options' must be an object", param="stream_options")
    for name, value in (options or {}).items():
        if value and name != "include_usage":
            raise RequestError(400, f"'{name}' of 'stream_options' is not supported", param="stream_options")
    return bool((options or {}).get("include_usage"))


def _tools(tools: Any) -> list[dict[str, Any]]:
    try:
        for tool in tools:
            if not isinstance(tool["function"]["name"], str):
                raise TypeError
    except (TypeError, KeyError) as error:
        raise RequestError(400, "'tools' must be a list of function tools", param="tools") from error
    return list(tools)
