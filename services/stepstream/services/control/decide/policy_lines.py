"""Find the line of an entry in a TOML file that `tomllib` has parsed. Pure."""

import re
import tomllib
from collections.abc import Sequence
from typing import Any

_HEADER = re.compile(r"""\s*\[\[?([\w."'\s-]+)\]\]?\s*(?:#.*)?$""")
_ENTRY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def line_of(document: str, path: Sequence[str]) -> int | None:
    """Return the line (from 1) of the longest part of the path that the file has; None: the file has none of it."""
    best, best_length = None, 0
    table: list[str] = []
    for number, line in enumerate(document.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _names(header[1])
            here = table
        elif entry := _ENTRY.match(line):
            here = table + _names(entry[1])
        else:
            continue
        common = len(here) if list(path[: len(here)]) == here else 0
        if common > best_length:
            best, best_length = number, common
    return best


def _names(dotted: str) -> list[str]:
    """Return the parts of a dotted key; empty: it is none, as within a string of several lines."""
    names: list[str] = []
    try:
        value: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return names
    while isinstance(value, dict):
        name, value = next(iter(value.items()))
        names.append(name)
    return names
