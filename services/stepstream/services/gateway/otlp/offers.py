"""The tools that a model was offered, as the generations of GenAI instrumentation write them. Pure."""

from typing import Any

import orjson

from stepstream.services.gateway.otlp.messages import nested
from stepstream.services.gateway.otlp.values import Attributes, structure

_WHOLE = ("gen_ai.tool.definitions", "gen_ai.request.tools", "llm.request.functions")
"""Attributes with all tools: today's convention, and two names that it had before."""
_INFERENCE, _INDEXED = "llm.tools", "llm.request.functions"
NAMES = frozenset({*_WHOLE, f"{_INFERENCE}.0.tool.json_schema", f"{_INDEXED}.0.name"})
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
    if f"{_INFERENCE}.0.tool.json_schema" in a:  # OpenInference
        listed = [item.get("tool") for item in nested(a, _INFERENCE) if isinstance(item, dict)]
        return [structure(tool["json_schema"]) for tool in listed if isinstance(tool, dict) and "json_schema" in tool]
    if f"{_INDEXED}.0.name" in a:  # OpenLLMetry
        return [_function(item) for item in nested(a, _INDEXED) if isinstance(item, dict)]
    return []


def _function(told: dict[str, Any]) -> dict[str, Any]:
    function = {"name": told.get("name")}
    if "description" in told:
        function["description"] = told["description"]
    schema = next((told[name] for name in _SCHEMA if name in told), None)
    if schema is not None:
        function["parameters"] = structure(schema)
    return {"type": "function", "function": function}
