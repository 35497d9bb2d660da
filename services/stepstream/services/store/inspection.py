"""Decide what a parsed statement may do. Pure.

The engine parses (`parseQueryToJSON`); this reads the syntax tree. It holds what the engine's grants do not: chDB runs
INTO OUTFILE and FROM INFILE outside of its access control, and the functions `file()` and `python()` need no grant.
"""

import re
from collections.abc import Iterator
from typing import Any

Tree = dict[str, Any]

_READS = frozenset({"SelectWithUnionQuery", "ShowTablesQuery", "ShowColumnsQuery", "ExplainQuery", "CheckTableQuery"})
_STATEMENTS = (
    frozenset({"InsertQuery", "CreateQuery", "AlterQuery", "DropQuery", "RenameQuery", "OptimizeQuery"})
    | {"DeleteQuery", "UpdateQuery", "SetQuery", "UseQuery", "SystemQuery"}
    | _READS
)
_TABLE_FUNCTIONS = frozenset(
    {"numbers", "numbers_mt", "zeros", "zeros_mt", "generate_series", "generateSeries", "primes", "values", "view"}
    | {"merge", "generateRandom"}
)
_ENGINES = re.compile(
    r"(Replacing|Summing|Aggregating|Collapsing|VersionedCollapsing|Coalescing)?MergeTree|Memory|Null|(Tiny|Stripe)?Log"
    r"|Join|Set|Buffer|Merge|Atomic"
)
# Statements that the engine parses but does not return as JSON, in its own canonical form.
_NAME = r"(?:\w+|`(?:[^`\\]|\\.)+`)"
_DESCRIPTION = re.compile(
    rf"(?:DESCRIBE TABLE|EXISTS(?: TEMPORARY)?(?: TABLE| VIEW| DATABASE)|SHOW CREATE(?: TABLE| VIEW| DATABASE)?) "
    rf"{_NAME}(?:\.{_NAME})?(?: FORMAT \w+)?(?: SETTINGS \w+ = \w+(?:, \w+ = \w+)*)?"
)


def refusal(tree: Tree, outside: frozenset[str], views: frozenset[str] = frozenset()) -> str | None:
    """Return why a statement is refused; None: it is permitted.

    Args:
        tree: the syntax tree of `parseQueryToJSON`.
        outside: lower-case names of functions that reach outside of the engine, of `outside_functions`.
        views: names of views with parameters, which are called as table functions.
    """
    if tree["type"] not in _STATEMENTS:
        return f"statements of type {tree['type']}"
    for node in nodes(tree):
        kind = node.get("type")
        if "out_file" in node:
            return "INTO OUTFILE"
        if "infile" in node:
            return "FROM INFILE"
        if kind == "InsertQuery" and "table_function" in node:
            return "INSERT INTO FUNCTION"
        if kind == "Storage" and not _ENGINES.fullmatch(node.get("engine", {}).get("name", "Memory")):
            return f"engine {node['engine']['name']}"
        if node.get("dictionary") and kind == "CreateQuery":
            return "dictionaries"
        if node.get("has_attach_from_path"):
            return "ATTACH FROM"
        if node.get("field_type") == "CustomType":  # a disk: chDB creates its folder before it checks the place
            return "a call as a setting's value"
        name = node.get("func_name") if kind == "ColumnsApplyTransformer" else node.get("name")
        if kind in {"Function", "ColumnsApplyTransformer"} and name and name.lower() in outside:
            return f"function {name}()"
        function = node.get("table_function") or node.get("as_table_function")
        if function and function["name"] not in _TABLE_FUNCTIONS | views:
            return f"table function {function['name']}()"
    return None


def reads_only(tree: Tree) -> bool:
    """Return True if a statement changes nothing, neither tables nor a session."""
    return tree["type"] in _READS


def settings_of(tree: Tree) -> dict[str, str]:
    """Return the settings in the text of a SELECT; of a UNION, those of its last part. Subqueries have their own."""
    if tree["type"] != "SelectWithUnionQuery":
        return {}
    changes = changed_settings(tree["list_of_selects"]["children"][-1])
    return {change["name"]: str(change["value"].get("value", "")) for change in changes}


def changed_settings(node: Tree) -> list[Tree]:
    """Return name and value of each setting in the SETTINGS clause of an object of the tree."""
    settings = node.get("settings")
    changes: list[Tree] = settings.get("changes", []) if isinstance(settings, dict) else []
    return changes


def is_description(canonical: str) -> bool:
    """Return True for DESCRIBE, EXISTS and SHOW CREATE of a named table, view or database."""
    return _DESCRIPTION.fullmatch(canonical) is not None


def outside_functions(table_functions: list[str], scalars: list[str], remote: list[str]) -> frozenset[str]:
    """Return the lower-case names of functions that no statement may call.

    Args:
        table_functions: names of the engine's table functions; an expression can hold one too: `x IN remote(…)`.
        scalars: names of its other functions.
        remote: the scalars that call a service.
    """
    calls = {name.lower() for name in table_functions} - {name.lower() for name in (*_TABLE_FUNCTIONS, *scalars)}
    return frozenset(calls | {name.lower() for name in remote} | {"file"})


def nodes(tree: Tree) -> Iterator[Tree]:
    """Yield every object of the tree; without recursion, because a statement may nest a thousand levels."""
    pending: list[Any] = [tree]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
