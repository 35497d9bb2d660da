"""Replace the calls of views with parameters in a SELECT by their definitions. Pure.

The engine analyzes a view with parameters twice: for the names and types of its columns, and to run it. As text it is
analyzed once, and takes up to a third less time (docs/measured/store-views.md, "Planning").

A statement stays as it is where its text could mean something else than the view: with a WITH clause, whose names the
definition would see, with arguments that are not constants, or with two calls of one view. It also stays as it is with
one of `TEXT_SETTINGS`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from stepstream.services.store.inspection import Tree, changed_settings, nodes
from stepstream.services.store.statement import TOKEN

PARAMETERS = ("since", "until")
"""Parameters of each view, of the type `DateTime('UTC')`."""
TEXT_SETTINGS = frozenset(
    {
        "use_query_cache",
        "max_query_size",
        "max_ast_depth",
        "max_ast_elements",
        "max_expanded_ast_elements",
        "max_parser_depth",
        "max_parser_backtracks",
        "max_subquery_depth",
    }
)
"""Settings that the engine applies to the text of a statement. With `use_query_cache` it rejects a text with `now()`,
which some definitions have; the others limit the size of a text."""
_PARAMETER = re.compile(rb"\{(\w+):DateTime\('UTC'\)\}")
_PLAIN = re.compile(rb"[\t\n\r !\"%-\[\]-~]*")
"""Texts that the engine and `TOKEN` divide alike: no heredocs, escapes, other quotes, or comments with a number sign.

Otherwise the text to run could have calls that nobody has inspected.
"""
_Token = re.Match[bytes]
_CONSTANT = frozenset({"Literal", "QueryParameter", "Function", "ExpressionList"})


@dataclass(frozen=True, slots=True)
class _Call:
    """`NAME(since = …, until = …)` in a text."""

    name: str
    start: int
    end: int
    arguments: Mapping[str, bytes]


def called_views(tree: Tree, names: frozenset[str]) -> dict[str, bool]:
    """Return the views of which a call can be replaced, with True for a call that has an alias.

    Args:
        tree: the syntax tree of `parseQueryToJSON`.
        names: names of the views.

    Returns:
        Nothing if one of the calls cannot be replaced.
    """
    if tree["type"] != "SelectWithUnionQuery":
        return {}
    found = list(nodes(tree))
    calls = [function for node in found if (function := node.get("table_function")) and function["name"] in names]
    aliases = {call["name"]: "alias" in call for call in calls}
    has_with = any("with" in node for node in found if node.get("type") == "SelectQuery")
    checks_text = any(change["name"] in TEXT_SETTINGS for node in found for change in changed_settings(node))
    if has_with or checks_text or len(aliases) < len(calls) or not all(map(_is_constant, calls)):
        return {}
    return aliases


def _is_constant(call: Tree) -> bool:
    """Return True for a call with a constant for each parameter."""
    given = []
    for argument in call.get("arguments", {}).get("children", []):
        if argument.get("name") != "equals" or len(sides := argument["arguments"]["children"]) != 2:
            return False
        given.append(sides[0].get("name"))
        if any(node["type"] not in _CONSTANT for node in nodes(sides[1]) if "type" in node):
            return False
    return sorted(given) == sorted(PARAMETERS)


def with_definitions(sql: bytes, aliases: Mapping[str, bool], definitions: Mapping[str, str]) -> bytes | None:
    """Return a statement with the definitions of the views in the place of their calls.

    Args:
        sql: the statement.
        aliases: as `called_views` returns them.
        definitions: texts by name of the view.

    Returns:
        None if the text has other calls than the syntax tree, or could have.
    """
    if not _PLAIN.fullmatch(sql):
        return None
    calls = list(_calls(sql, frozenset(aliases)))
    if Counter(call.name for call in calls) != Counter(aliases.keys()):
        return None
    parts, end = [], 0
    for call in calls:
        values = {name.encode(): b"CAST(" + of + b", 'DateTime(\\'UTC\\')')" for name, of in call.arguments.items()}
        text = _PARAMETER.sub(partial(_value, values), definitions[call.name].encode())
        alias = b"" if aliases[call.name] else f" AS {call.name}".encode()
        parts += [sql[end : call.start], b"(\n", text, b"\n)", alias]
        end = call.end
    return b"".join([*parts, sql[end:]])


def _value(values: Mapping[bytes, bytes], parameter: re.Match[bytes]) -> bytes:
    return values[parameter[1]]


def _calls(sql: bytes, names: frozenset[str]) -> Iterator[_Call]:
    """Yield the calls in a text that give each parameter by its name."""
    tokens = [token for token in TOKEN.finditer(sql) if token.lastgroup != "skip"]
    for at, token in enumerate(tokens[:-1]):
        name = token[0].decode("ascii", "replace")
        if token.lastgroup == "word" and name in names and tokens[at + 1][0] == b"(":
            arguments, end = _arguments(tokens[at + 1 :])
            given = {
                parameter[0].decode("ascii", "replace"): sql[value[0].start() : value[-1].end()]
                for parameter, equals, *value in arguments
                if value and equals[0] == b"="
            }
            if sorted(given) == sorted(PARAMETERS):
                yield _Call(name, token.start(), end, given)


def _arguments(tokens: Sequence[_Token]) -> tuple[list[list[_Token]], int]:
    """Return the tokens of each argument with two or more, and the end of the call, which begins with a parenthesis."""
    arguments: list[list[_Token]] = [[]]
    depth = 1
    for token in tokens[1:]:
        depth += {"open": 1, "close": -1}.get(token.lastgroup or "", 0)
        if depth == 0:
            return [argument for argument in arguments if len(argument) > 1], token.end()
        if depth == 1 and token[0] == b",":
            arguments.append([])
        else:
            arguments[-1].append(token)
    return [], 0
