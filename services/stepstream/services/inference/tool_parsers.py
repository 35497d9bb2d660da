"""Parse a model's text into OpenAI's tool calls; `inference.tool_parser` selects the parser.

A parser must be the inverse of the chat template: the template renders the parsed call to exactly the sampled tokens.
Otherwise the next prompt would not continue this one.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call: `arguments` is JSON, as OpenAI's `function.arguments`."""

    name: str
    arguments: str


class ToolParser(Protocol):
    """Reads one response."""

    def parse(self, text: str, tools: Collection[str]) -> ParsedCall | None:
        """Return the call if the whole response is one; None: it is content."""

    def may_become_call(self, text: str, tools: Collection[str]) -> bool:
        """Return True if a response with this beginning could still be a call, so that a stream must hold it back."""


class CallLine:
    """`name(argument)`, one call a response, of a tool with the one string parameter `input`."""

    def parse(self, text: str, tools: Collection[str]) -> ParsedCall | None:
        """See `ToolParser.parse`."""
        name, parenthesis, rest = text.partition("(")
        if name in tools and parenthesis and rest.endswith(")"):
            return ParsedCall(name, self._arguments(rest[:-1]))
        return None

    def _arguments(self, written: str) -> str:
        return json.dumps({"input": written})

    def may_become_call(self, text: str, tools: Collection[str]) -> bool:
        """See `ToolParser.may_become_call`."""
        return any(text.startswith(f"{name}(") or f"{name}(".startswith(text) for name in tools)


class CallJson(CallLine):
    """`name(arguments)`, one call a response; passes the arguments unchanged, also if they are no JSON."""

    def _arguments(self, written: str) -> str:
        return written


class NoTools:
    """Every response is content."""

    def parse(self, text: str, tools: Collection[str]) -> ParsedCall | None:
        """Return None."""
        return None

    def may_become_call(self, text: str, tools: Collection[str]) -> bool:
        """Return False."""
        return False


TOOL_PARSERS: dict[str, type[CallLine] | type[NoTools]] = {
    "call_line": CallLine,
    "call_json": CallJson,
    "none": NoTools,
}
