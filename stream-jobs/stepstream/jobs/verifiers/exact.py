"""The verifier `exact`: the observed text equals the expected one."""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from stepstream.jobs.verifiers.base import Case, Source, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.options import Options, VerifierContext, parse_options

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")


class ExactOptions(Options):
    """Options of `exact`."""

    case: bool = True
    """True if upper and lower case differ."""
    spaces: bool = False
    """True if runs of white space differ; those at the ends never count."""
    numbers: bool = False
    """True if both are compared as numbers, so that 1,000.0 equals 1000."""
    tolerance: float = 1e-9
    """Relative and absolute tolerance of numbers."""


class Exact:
    """Compares with `expected` of the task: a text, a number, or a list of accepted ones."""

    source: Source = "verifier"
    reads_trajectory = False

    def __init__(self, options: ExactOptions) -> None:
        self._options = options

    def verify(self, case: Case) -> Sequence[Verdict]:
        """Return 1 if they are equal, else 0."""
        value = case.expected.get("expected")
        choices = value if isinstance(value, list) else [value]
        if not choices or any(isinstance(one, bool | dict | list) or one is None for one in choices):
            raise UnverifiableCase("the task's expected values need 'expected': a text, a number, or a list of them")
        right = any(self._equal(case.observed, str(one)) for one in choices)
        return [Verdict(float(right), "equal" if right else "different")]

    def _equal(self, observed: str, wanted: str) -> bool:
        if self._options.numbers:
            left, right = number(observed), number(wanted)
            if left is not None and right is not None:
                return math.isclose(left, right, rel_tol=self._options.tolerance, abs_tol=self._options.tolerance)
        return self._plain(observed) == self._plain(wanted)

    def _plain(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text).strip()
        if not self._options.spaces:
            text = " ".join(text.split())
        return text if self._options.case else text.casefold()


def number(text: str) -> float | None:
    """Parse a number, with or without commas between thousands; None: not a number, or too large."""
    text = text.strip()
    if not text or not _NUMBER.fullmatch(text) or not any(map(str.isdigit, text)):
        return None
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None


def make(options: Mapping[str, Any], context: VerifierContext) -> Exact:
    """Create the verifier from its options."""
    return Exact(parse_options(ExactOptions, options))
