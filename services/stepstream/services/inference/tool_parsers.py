"""How a model writes a tool call, and what that is in OpenAI's form: chosen by `inference.tool_parser`.

A parser and the chat template are inverses: the template writes the parsed call back to exactly the tokens that
were sampled, or the next prompt would not continue this one.
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
        """The call that this whole response is, or None where it is content."""

    def may_become_call(self, text: str, tools: Collection[str]) -> bool:
        """Whether a response that begins so could still be a call, so that a stream must hold it back."""


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
    """`name(arguments)`, one call a response; the arguments go through as they are written, whether JSON or not."""

    def _arguments(self, written: str) -> str:
        return written


class NoTools:
    """Every response is content."""

    def parse(self, text: str, tools: Collection[str]) -> ParsedCall | None:
        """Never a call."""
        return None

    def may_become_call(self, text: str, tools: Collection[str]) -> bool:
        """Never."""
        return False


TOOL_PARSERS: dict[str, type[CallLine] | type[NoTools]] = {
    "call_line": CallLine,
    "call_json": CallJson,
    "none": NoTools,
}
