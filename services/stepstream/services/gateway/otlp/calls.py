"""What one call of a model said and how it was sampled, whichever convention its span follows.

The tools that a model was offered, as the generations of GenAI instrumentation write them. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from stepstream.services.gateway.otlp import messages
from stepstream.services.gateway.otlp.attributes import Attributes, number, structure, text, whole
from stepstream.services.gateway.otlp.messages import nested
from stepstream.services.gateway.otlp.spans import Log, Span
from stepstream.topics.events import Message, Sampling, new_message

_WHOLE = ("gen_ai.tool.definitions", "gen_ai.request.tools", "llm.request.functions")
"""Attributes with all tools: today's convention, and two names that it had before."""
_INFERENCE_TOOLS, _INDEXED_TOOLS = "llm.tools", "llm.request.functions"
NAMES = frozenset({*_WHOLE, f"{_INFERENCE_TOOLS}.0.tool.json_schema", f"{_INDEXED_TOOLS}.0.name"})
"""Attributes of which one is there wherever tools are told."""
_SCHEMA = ("parameters", "input_schema", "arguments")
"""What OpenLLMetry calls the schema of the arguments, by provider."""


def offer_of(a: Attributes) -> str:
    """The tools on offer as JSON, in the form in which they were told; empty: none are told."""
    tools = _tools(a)
    return orjson.dumps(tools, default=str).decode() if tools else ""


def hash_of(offer: str) -> int:
    """Tells offers apart in this process; 0: none."""
    return hash(offer) or 1 if offer else 0


def _tools(a: Attributes) -> list[Any]:
    for name in _WHOLE:
        tools = structure(a.get(name))
        if isinstance(tools, list) and tools:
            return [structure(tool) for tool in tools]
    if f"{_INFERENCE_TOOLS}.0.tool.json_schema" in a:  # OpenInference
        listed = [item.get("tool") for item in nested(a, _INFERENCE_TOOLS) if isinstance(item, dict)]
        return [structure(tool["json_schema"]) for tool in listed if isinstance(tool, dict) and "json_schema" in tool]
    if f"{_INDEXED_TOOLS}.0.name" in a:  # OpenLLMetry
        return [_function(item) for item in nested(a, _INDEXED_TOOLS) if isinstance(item, dict)]
    return []


def _function(told: dict[str, Any]) -> dict[str, Any]:
    function = {"name": told.get("name")}
    if "description" in told:
        function["description"] = told["description"]
    schema = next((told[name] for name in _SCHEMA if name in told), None)
    if schema is not None:
        function["parameters"] = structure(schema)
    return {"type": "function", "function": function}


DETAILS = "gen_ai.client.inference.operation.details"
EVALUATION = "gen_ai.evaluation.result"
CURRENT = frozenset({"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"})
_INDEXED = frozenset({"gen_ai.prompt.0.role", "gen_ai.prompt.0.content", "gen_ai.completion.0.role"})
_INFERENCE = frozenset({"llm.input_messages.0.message.role", "llm.output_messages.0.message.role"})
_SAYING = CURRENT | _INDEXED | _INFERENCE | {"gen_ai.completion.0.content"}


@dataclass(slots=True)
class Call:
    """The content of a call; empty messages where the instrumentation captured none."""

    prompt: list[Message]
    response: Message
    finish_reason: str
    model: str
    sampling: Sampling
    usage_prompt_tokens: int | None
    usage_response_tokens: int | None
    first_token_ms: float | None
    cost_usd: float | None
    offer: str
    """The tools on offer as JSON; empty: none are told."""


def has_content(span: Span) -> bool:
    """Whether the span itself says what was said; otherwise log records may."""
    attributes = span.attributes
    if "gen_ai.output.messages" in attributes or not _SAYING.isdisjoint(attributes):
        return True
    return any(event.name in messages.EVENT_ROLES or event.name in (messages.CHOICE, DETAILS) for event in span.events)


def call_of(span: Span, logs: Sequence[Log] = ()) -> Call:
    """The call that a span and its log records tell of; what the span says wins."""
    a = span.attributes
    for event in span.events:
        if event.name == DETAILS:
            a = {**event.attributes, **a}
    for log in logs:
        if log.name == DETAILS:
            a = {**log.attributes, **(log.body if isinstance(log.body, dict) else {}), **a}
    prompt, response, finish = _said(a, span, logs)
    asked: Attributes = {}
    if "llm.invocation_parameters" in a:
        parameters = structure(a["llm.invocation_parameters"])
        asked = parameters if isinstance(parameters, dict) else {}
    get = a.get
    model = get("gen_ai.request.model") or asked.get("model") or get("gen_ai.response.model") or get("llm.model_name")
    first_chunk, cost = get("gen_ai.response.time_to_first_chunk"), get("llm.cost.total")
    return Call(
        prompt,
        response if response is not None else new_message(role="assistant"),
        messages.finish_reason(get("gen_ai.response.finish_reasons") or get("llm.finish_reason")) or finish,
        model if type(model) is str else text(model),
        sampling_of(a, asked),
        whole(_first(a, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")),
        whole(_first(a, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")),
        None if first_chunk is None else milliseconds(first_chunk),
        None if cost is None else number(cost),
        offer_of(a),
    )


def _said(a: Attributes, span: Span, logs: Sequence[Log]) -> tuple[list[Message], Message | None, str]:
    """Prompt, response and finish reason."""
    if "gen_ai.output.messages" in a or not CURRENT.isdisjoint(a):
        prompt = messages.part_messages(a.get("gen_ai.input.messages"))
        if "gen_ai.system_instructions" in a:
            prompt = messages.instructions(a["gen_ai.system_instructions"]) + prompt
        raw = structure(a.get("gen_ai.output.messages"))
        answers = messages.part_messages(raw[:1] if isinstance(raw, list) else raw)
        first = raw[0] if isinstance(raw, list) and raw and isinstance(raw[0], dict) else {}
        return prompt, answers[0] if answers else None, messages.finish_reason(first.get("finish_reason"))
    if not _INDEXED.isdisjoint(a):
        answers = messages.indexed_messages(a, "gen_ai.completion")
        finish = messages.finish_reason(a.get("gen_ai.completion.0.finish_reason"))
        return messages.indexed_messages(a, "gen_ai.prompt"), answers[0] if answers else None, finish
    if not _INFERENCE.isdisjoint(a):
        answers = messages.inference_messages(a, "llm.output_messages")
        return messages.inference_messages(a, "llm.input_messages"), answers[0] if answers else None, ""
    told: list[tuple[str, Any]] = [(event.name, event.attributes) for event in span.events]
    if not any(name in messages.EVENT_ROLES or name == messages.CHOICE for name, _ in told):
        told = [(log.name, log.body if log.body is not None else log.attributes) for log in _in_order(logs)]
    return messages.event_messages(told)


def _in_order(logs: Sequence[Log]) -> list[Log]:
    return sorted(logs, key=lambda log: log.time_ns)


def sampling_of(a: Attributes, asked: Attributes) -> Sampling:
    """How a response was sampled, by the call's attributes and the parameters it was asked with."""
    if asked:
        most = asked.get("max_tokens", asked.get("max_completion_tokens"))
        a = {
            **{f"gen_ai.request.{name}": value for name, value in asked.items()},
            "gen_ai.request.max_tokens": most,
            **a,
        }
    temperature, top_p = a.get("gen_ai.request.temperature"), a.get("gen_ai.request.top_p")
    most, seed = a.get("gen_ai.request.max_tokens"), a.get("gen_ai.request.seed")
    heat = None if temperature is None else number(temperature)
    nucleus = None if top_p is None else number(top_p)
    return {
        "temperature": 1.0 if heat is None else heat,
        "top_p": 1.0 if nucleus is None else nucleus,
        "max_tokens": None if most is None else whole(most, 31),
        "seed": None if seed is None else whole(seed),
    }


def _first(a: Attributes, *names: str) -> Any:
    for name in names:
        if name in a:
            return a[name]
    return None


def milliseconds(seconds: Any) -> float | None:
    """An attribute in seconds as milliseconds; None where it is no finite number."""
    found = number(seconds)
    return None if found is None else found * 1000.0
