"""`regex`: what was observed has the form that a pattern describes (RE2, which takes linear time for any text)."""

from collections.abc import Mapping, Sequence
from typing import Any

import re2

from stepstream.jobs.verifiers.base import Case, Source, Unusable, Verdict
from stepstream.jobs.verifiers.options import BadOptions, Options, Surroundings, expected, read


class BadPattern(ValueError):
    """Not a pattern of RE2; the message says why."""


class RegexOptions(Options):
    """Options of `regex`."""

    pattern: str = ""
    """Pattern for every task; empty: each task has one, as `pattern` in the file of expected values."""
    whole: bool = False
    """Whether the whole text must fit; otherwise, a part."""
    wanted: bool = True
    """Whether it is right that the pattern is found; false: that it is not."""


class Regex:
    """Looks for a pattern."""

    source: Source = "verifier"
    reads_trajectory = False

    def __init__(self, options: RegexOptions) -> None:
        """Raises BadOptions where the pattern is none."""
        self._options = options
        try:
            self._pattern = compiled(options.pattern) if options.pattern else None
        except BadPattern as error:
            raise BadOptions(f"pattern: {error}") from None

    def verify(self, case: Case) -> Sequence[Verdict]:
        """1 where it is found (or, with `wanted = false`, is not), else 0."""
        pattern = self._pattern
        if pattern is None:
            try:
                pattern = compiled(expected(case.expected.get("pattern"), str, "pattern"))
            except BadPattern:
                raise Unusable("the task's pattern is not one of RE2's") from None
        text = case.observed
        found = (pattern.fullmatch(text.strip()) if self._options.whole else pattern.search(text)) is not None
        return [Verdict(float(found == self._options.wanted), "found" if found else "absent")]


def compiled(pattern: str) -> Any:
    """A pattern of RE2.

    Raises:
        BadPattern: it is none.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        [reason] = error.args
        raise BadPattern(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None


def make(options: Mapping[str, Any], surroundings: Surroundings) -> Regex:
    """From options."""
    return Regex(read(RegexOptions, options))
