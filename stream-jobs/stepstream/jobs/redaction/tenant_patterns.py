"""Compile and match patterns that tenants write, with RE2 alone: no pattern takes more than linear time.

Python's `re` needs exponential time for patterns such as `(a|a)+$`, and one slow search stops the governance of all
tenants. RE2 lacks lookaround and back references; a pattern with them is refused. Its `\\d`, `\\w`, `\\s` and `\\b` are
ASCII.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import re2

from stepstream.jobs.redaction.re2_patterns import count_characters
from stepstream.jobs.redaction.rule import Finder

_MAX_INSTRUCTIONS = 1_500
"""Largest program: search time is at most this times the length of the text."""


class InvalidPattern(ValueError):
    """The pattern is refused; the message gives the reason."""


@lru_cache(maxsize=1_024)
def compile_pattern(pattern: str, max_instructions: int | None = None) -> Any:
    """Compile an RE2 pattern.

    Raises:
        InvalidPattern: RE2 does not accept it, or its program is too large.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        [reason] = error.args
        raise InvalidPattern(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    except UnicodeEncodeError:
        raise InvalidPattern("it holds half a surrogate pair") from None
    if max_instructions and compiled.programsize > max_instructions:
        raise InvalidPattern(
            f"it compiles to {compiled.programsize} instructions, and {max_instructions} are allowed: shorten its "
            "bounded repetitions and its classes of letters"
        )
    return compiled


def tenant_pattern(pattern: str) -> Any:
    """Compile a tenant's pattern.

    Raises:
        InvalidPattern: RE2 does not accept it, or its program is too large.
    """
    return compile_pattern(pattern, _MAX_INSTRUCTIONS)


def by_tenant_pattern(pattern: str) -> Finder:
    """Build a rule's `find`: each match of a tenant's pattern (or its group `value`) in the whole text.

    Raises:
        InvalidPattern: as `tenant_pattern`.
    """
    compiled = tenant_pattern(pattern)
    group = compiled.groupindex.get("value", 0)

    def find(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        coded = _encode(text)
        read = characters = 0
        for match in compiled.finditer(coded):
            start, end = match.span(group)
            if start < 0:
                continue
            characters += count_characters(coded[read:start])
            read = start
            yield characters, characters + count_characters(coded[start:end])

    return find


def fully_matches(compiled: Any, text: str) -> bool:
    """Return True if a compiled pattern matches the whole text."""
    return compiled.fullmatch(_encode(text)) is not None


def _encode(text: str) -> bytes:
    """Encode a text; half a surrogate pair, which RE2 cannot read, becomes one other character."""
    return text.encode("utf-8", "replace")
