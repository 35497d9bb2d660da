"""Parse and check the `[redaction]` table of a policy."""

import re
from collections.abc import Mapping
from typing import Any

from stepstream.jobs.redaction.catalogue import REGIONS, RULES
from stepstream.jobs.redaction.detectors import check_installed
from stepstream.jobs.redaction.options import TIERS, RedactionError, RedactionOptions
from stepstream.jobs.redaction.tenant_patterns import InvalidPattern, tenant_pattern

_CUSTOM_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_MAX_PATTERN = 500


def parse_options(table: Mapping[str, Any]) -> RedactionOptions:
    """Return the options of a policy's `[redaction]` table.

    ```toml
    [redaction]
    tiers = ["inline", "presidio"]
    names = true
    regions = ["us", "de"]
    allow = ["support@example\\\\.org"]
    [redaction.rules]
    mac = true
    ip = false
    [redaction.custom]
    employee = "EMP-\\\\d{6}"
    ```

    Raises:
        RedactionError: an entry is unknown or of the wrong type, or its package is not installed.
    """
    unknown = table.keys() - {"tiers", "names", "regions", "allow", "rules", "custom"}
    if unknown:
        raise RedactionError(f"[redaction] has no entry {', '.join(sorted(unknown))}; it has tiers, names, regions, "
                             "allow, rules and custom")  # fmt: skip
    tiers = _words(table, "tiers", frozenset(TIERS)) if "tiers" in table else frozenset({"inline"})
    if not tiers:
        raise RedactionError(f"redaction.tiers is empty: name at least one of {', '.join(TIERS)}")
    names = table.get("names", False)
    if not isinstance(names, bool):
        raise RedactionError("redaction.names must be true or false")
    check_installed(tiers)
    custom = _custom(table.get("custom", {}), RULES)
    switched = _switches(table.get("rules", {}), RULES)
    return RedactionOptions(
        tiers=tiers,
        names=names,
        off=frozenset(name for name, enabled in switched.items() if not enabled),
        on=frozenset(name for name, enabled in switched.items() if enabled),
        regions=_words(table, "regions", REGIONS) if "regions" in table else None,
        allow=tuple(_pattern(text, "redaction.allow") for text in _list(table, "allow")),
        custom=custom,
    )


def _list(table: Mapping[str, Any], name: str) -> list[str]:
    values = table.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RedactionError(f"redaction.{name} must be a list of strings")
    return values


def _words(table: Mapping[str, Any], name: str, known: frozenset[str]) -> frozenset[str]:
    values = frozenset(_list(table, name))
    if values - known:
        wrong, right = ", ".join(sorted(values - known)), ", ".join(sorted(known))
        raise RedactionError(f"redaction.{name} does not know {wrong}; it knows {right}")
    return values


def _switches(table: Any, known: frozenset[str]) -> dict[str, bool]:
    if not isinstance(table, Mapping) or not all(isinstance(enabled, bool) for enabled in table.values()):
        raise RedactionError("redaction.rules must be a table of rule = true or false")
    if table.keys() - known:
        wrong, right = ", ".join(sorted(table.keys() - known)), ", ".join(sorted(known))
        raise RedactionError(f"redaction.rules does not know {wrong}; it knows {right}")
    return dict(table)


def _custom(table: Any, known: frozenset[str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(table, Mapping) or not all(isinstance(pattern, str) for pattern in table.values()):
        raise RedactionError("redaction.custom must be a table of name = regular expression")
    for name in table:
        if name in known or not _CUSTOM_NAME.fullmatch(name):
            raise RedactionError(f"redaction.custom.{name}: choose a name of lower-case letters, digits and _ that no "
                                 "built-in rule has")  # fmt: skip
    return tuple((name, _pattern(table[name], f"redaction.custom.{name}")) for name in sorted(table))


def _pattern(text: str, entry: str) -> str:
    if len(text) > _MAX_PATTERN:
        raise RedactionError(f"{entry} has {len(text)} characters; shorten it to {_MAX_PATTERN}")
    try:
        compiled = tenant_pattern(text)
    except InvalidPattern as error:
        raise RedactionError(f"{entry} is not a regular expression that RE2 accepts: {error}. RE2 has no lookaround "
                             "and no back references") from None  # fmt: skip
    if compiled.match(""):
        raise RedactionError(f"{entry} matches empty text: make it match at least one character")
    return text
