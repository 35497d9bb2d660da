"""The verifier `regex`: the observed text matches a pattern (RE2: linear time for any text)."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepstream.jobs.redaction.tenant_patterns import InvalidPattern, compile_pattern
from stepstream.jobs.verifiers.base import Case, Source, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.options import InvalidOptions, Options, VerifierContext, expected_value, parse_options


class RegexOptions(Options):
    """Options of `regex`."""

    pattern: str = ""
    """Pattern for every task; empty: each task has one, as `pattern` in the file of expected values."""
    whole: bool = False
    """True if the whole text must match; false: a part."""
    wanted: bool = True
    """True if a match is right; false: if no match is."""


class Regex:
    """Searches for a pattern."""

    source: Source = "verifier"
    reads_trajectory = False

    def __init__(self, options: RegexOptions) -> None:
        """Create it.

        Raises:
            InvalidOptions: the pattern is invalid.
        """
        self._options = options
        try:
            self._pattern = compile_pattern(options.pattern) if options.pattern else None
        except InvalidPattern as error:
            raise InvalidOptions(f"pattern: {error}") from None

    def verify(self, case: Case) -> Sequence[Verdict]:
        """Return 1 if the text matches (or with `wanted = false` does not), else 0."""
        pattern = self._pattern
        if pattern is None:
            try:
                pattern = compile_pattern(expected_value(case.expected.get("pattern"), str, "pattern"))
            except InvalidPattern:
                raise UnverifiableCase("RE2 rejects the task's pattern") from None
        text = case.observed
        found = (pattern.fullmatch(text.strip()) if self._options.whole else pattern.search(text)) is not None
        return [Verdict(float(found == self._options.wanted), "found" if found else "absent")]


def make(options: Mapping[str, Any], context: VerifierContext) -> Regex:
    """Create the verifier from its options."""
    return Regex(parse_options(RegexOptions, options))
