"""Read one model call from its span, in any convention: messages, sampling, usage and available tools. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from stepstream.services.gateway.otlp import logfire, messages
from stepstream.services.gateway.otlp.attributes import Attributes, integer, number, structure, text
from stepstream.services.gateway.otlp.messages import nested
from stepstream.services.gateway.otlp.spans import Log, Span
from stepstream.topics.events import Message, Sampling, new_message
from stepstream.topics.request_sampling import constraint_of

_LIST_ATTRIBUTES = ("gen_ai.tool.definitions", "gen_ai.request.tools", "llm.request.functions")
"""Attributes with all tools: the current convention's, and two earlier names."""
_INFERENCE_TOOLS, _INDEXED_TOOLS = "llm.tools", "llm.request.functions"
TOOL_ATTRIBUTES = frozenset({*_LIST_ATTRIBUTES, f"{_INFERENCE_TOOLS}.0.tool.json_schema", f"{_INDEXED_TOOLS}.0.name"})
"""At least one of these is present if the span lists tools."""
_SCHEMA = ("parameters", "input_schema", "arguments")
"""OpenLLMetry's names for the schema of the arguments, by provider."""
_PROMPT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"
_RESPONSE_TOKENS = "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"
DETAILS = "gen_ai.client.inference.operation.details"
EVALUATION = "gen_ai.evaluation.result"
CURRENT_CONTENT = frozenset({"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"})
_INDEXED_CONTENT = frozenset({"gen_ai.prompt.0.role", "gen_ai.prompt.0.content", "gen_ai.completion.0.role"})
_INFERENCE_CONTENT = frozenset({"llm.input_messages.0.message.role", "llm.output_messages.0.message.role"})
_INFERENCE_RESPONSES = "Response"
"""Name of OpenInference's spans of the Responses API."""
_CONTENT = CURRENT_CONTENT | _INDEXED_CONTENT | _INFERENCE_CONTENT | {"gen_ai.completion.0.content"}


@dataclass(slots=True)
class Call:
    """The content of a call; its messages are empty if the instrumentation captured none."""

    prompt: list[Message]
    response: Message
    finish_reason: str
    model: str
    sampling: Sampling
    usage_prompt_tokens: int | None
    usage_response_tokens: int | None
    first_token_ms: float | None
    cost_usd: float | None
    tool_definitions: str
    """The available tools as JSON; empty: none listed."""


def has_content(span: Span) -> bool:
    """Return True if the span itself has messages; otherwise log records may have them."""
    attributes = span.attributes
    if "gen_ai.output.messages" in attributes or not _CONTENT.isdisjoint(attributes):
        return True
    if logfire.has_content(attributes):
        return True
    return any(event.name in messages.EVENT_ROLES or event.name in (messages.CHOICE, DETAILS) for event in span.events)


def call_of(span: Span, logs: Sequence[Log] = ()) -> Call:
    """Return the call of a span and its log records; the span's attributes take precedence."""
    a = span.attributes
    for event in span.events:
        if event.name == DETAILS:
            a = {**event.attributes, **a}
    for log in logs:
        if log.name == DETAILS:
            a = {**log.attributes, **(log.body if isinstance(log.body, dict) else {}), **a}
    prompt, response, finish = _content_of(a, span, logs)
    request, usage = logfire.request_of(a), logfire.usage_of(a)
    if "llm.invocation_parameters" in a:
        parameters = structure(a["llm.invocation_parameters"])
        request = parameters if isinstance(parameters, dict) else {}
    get = a.get
    model = get("gen_ai.request.model") or request.get("model") or get("gen_ai.response.model") or get("llm.model_name")
    first_chunk, cost = get("gen_ai.response.time_to_first_chunk"), get("llm.cost.total")
    return Call(
        prompt,
        response if response is not None else new_message(role="assistant"),
        messages.finish_reason(get("gen_ai.response.finish_reasons") or get("llm.finish_reason")) or finish,
        model if type(model) is str else text(model),
        sampling_of(a, request),
        integer(_first({**usage, **a}, *_PROMPT_TOKENS)),
        integer(_first({**usage, **a}, *_RESPONSE_TOKENS)),
        None if first_chunk is None else milliseconds(first_chunk),
        None if cost is None else number(cost),
        tool_definitions_of(a),
    )


def _content_of(a: Attributes, span: Span, logs: Sequence[Log]) -> tuple[list[Message], Message | None, str]:
    """Return prompt, response and finish reason."""
    is_responses = span.name == _INFERENCE_RESPONSES or logfire.is_responses_api(a)
    if "gen_ai.output.messages" in a or not CURRENT_CONTENT.isdisjoint(a):
        prompt = messages.part_messages(a.get("gen_ai.input.messages"))
        if "gen_ai.system_instructions" in a:
            prompt = messages.instructions(a["gen_ai.system_instructions"]) + prompt
        raw = structure(a.get("gen_ai.output.messages"))
        if is_responses:
            prompt, answers = messages.merge_turns(prompt), messages.merge_turns(messages.part_messages(raw))
        else:
            answers = messages.part_messages(raw[:1] if isinstance(raw, list) else raw)
        first = raw[0] if isinstance(raw, list) and raw and isinstance(raw[0], dict) else {}
        return prompt, answers[0] if answers else None, messages.finish_reason(first.get("finish_reason"))
    if logfire.has_content(a):
        prompt, response, finish = logfire.content_of(a, span.resource.scope)
        return messages.merge_turns(prompt) if is_responses else prompt, response, finish
    if not _INDEXED_CONTENT.isdisjoint(a):
        answers = messages.indexed_messages(a, "gen_ai.completion")
        finish = messages.finish_reason(a.get("gen_ai.completion.0.finish_reason"))
        return messages.indexed_messages(a, "gen_ai.prompt"), answers[0] if answers else None, finish
    if not _INFERENCE_CONTENT.isdisjoint(a):
        prompt = messages.inference_messages(a, "llm.input_messages")
        answers = messages.inference_messages(a, "llm.output_messages")
        if is_responses:
            prompt, answers = messages.merge_turns(prompt), messages.merge_turns(answers)
        return prompt, answers[0] if answers else None, ""
    events: list[tuple[str, Any]] = [(event.name, event.attributes) for event in span.events]
    if not any(name in messages.EVENT_ROLES or name == messages.CHOICE for name, _ in events):
        events = [(log.name, log.body if log.body is not None else log.attributes) for log in _in_order(logs)]
    return messages.event_messages(events)


def _in_order(logs: Sequence[Log]) -> list[Log]:
    return sorted(logs, key=lambda log: log.time_ns)


def sampling_of(a: Attributes, request: Attributes) -> Sampling:
    """Return the sampling of a response, from the call's attributes and the request's parameters."""
    if request:
        limits = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        max_tokens = next((request[name] for name in limits if request.get(name) is not None), None)
        a = {
            **{f"gen_ai.request.{name}": value for name, value in request.items()},
            "gen_ai.request.max_tokens": max_tokens,
            **a,
        }
    get = a.get
    max_tokens, seed, top_k = get("gen_ai.request.max_tokens"), get("gen_ai.request.seed"), get("gen_ai.request.top_k")
    return {
        "temperature": _number(get("gen_ai.request.temperature"), 1.0),
        "top_p": _number(get("gen_ai.request.top_p"), 1.0),
        "max_tokens": None if max_tokens is None else integer(max_tokens, 31),
        "seed": None if seed is None else integer(seed),
        "top_k": 0 if top_k is None else max(0, integer(top_k, 31) or 0),
        "min_p": _number(get("gen_ai.request.min_p"), 0.0),
        "presence_penalty": _number(get("gen_ai.request.presence_penalty"), 0.0),
        "frequency_penalty": _number(get("gen_ai.request.frequency_penalty"), 0.0),
        "repetition_penalty": _number(get("gen_ai.request.repetition_penalty"), 1.0),
        "logit_bias": bool(request.get("logit_bias")),
        "constraint": constraint_of(request) or ("json_object" if get("gen_ai.output.type") == "json" else ""),
    }


def _number(value: Any, default: float) -> float:
    found = None if value is None else number(value)
    return default if found is None else found


def _first(a: Attributes, *names: str) -> Any:
    for name in names:
        if name in a:
            return a[name]
    return None


def milliseconds(seconds: Any) -> float | None:
    """Return an attribute in seconds as milliseconds; None: no finite number."""
    value = number(seconds)
    return None if value is None else value * 1000.0


def tool_definitions_of(a: Attributes) -> str:
    """Return the available tools as JSON, in the instrumentation's form; empty: none listed."""
    tools = _tools(a)
    return orjson.dumps(tools, default=str).decode() if tools else ""


def _tools(a: Attributes) -> list[Any]:
    for name in _LIST_ATTRIBUTES:
        tools = structure(a.get(name))
        if isinstance(tools, list) and tools:
            return [structure(tool) for tool in tools]
    if f"{_INFERENCE_TOOLS}.0.tool.json_schema" in a:  # OpenInference
        listed = [item.get("tool") for item in nested(a, _INFERENCE_TOOLS) if isinstance(item, dict)]
        return [structure(tool["json_schema"]) for tool in listed if isinstance(tool, dict) and "json_schema" in tool]
    if f"{_INDEXED_TOOLS}.0.name" in a:  # OpenLLMetry
        return [_function(item) for item in nested(a, _INDEXED_TOOLS) if isinstance(item, dict)]
    tools = logfire.request_of(a).get("tools")
    return tools if isinstance(tools, list) else []


def _function(listed: dict[str, Any]) -> dict[str, Any]:
    function = {"name": listed.get("name")}
    if "description" in listed:
        function["description"] = listed["description"]
    schema = next((listed[name] for name in _SCHEMA if name in listed), None)
    if schema is not None:
        function["parameters"] = structure(schema)
    return {"type": "function", "function": function}


def tools_hash_of(tool_definitions: str) -> int:
    """Return a hash that is valid within this process; 0: no tools."""
    return hash(tool_definitions) or 1 if tool_definitions else 0
