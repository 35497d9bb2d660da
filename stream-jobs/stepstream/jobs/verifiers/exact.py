"""`exact`: what was observed is what was expected."""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from stepstream.jobs.verifiers.base import Case, Source, Unusable, Verdict
from stepstream.jobs.verifiers.options import Options, Surroundings, read

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")


class ExactOptions(Options):
    """Options of `exact`."""

    case: bool = True
    """Whether upper and lower case differ."""
    spaces: bool = False
    """Whether runs of white space differ; those at the ends never count."""
    numbers: bool = False
    """Whether both are compared as numbers, so that 1,000.0 is 1000."""
    tolerance: float = 1e-9
    """Relative and absolute, of numbers."""


class Exact:
    """Compares with `expected` of the task: a text or number, or a list of which one must fit."""

    source: Source = "verifier"
    reads_trajectory = False

    def __init__(self, options: ExactOptions) -> None:
        self._options = options

    def verify(self, case: Case) -> Sequence[Verdict]:
        """1 where they are equal, else 0."""
        known = case.expected.get("expected")
        choices = known if isinstance(known, list) else [known]
        if not choices or any(isinstance(one, bool | dict | list) or one is None for one in choices):
            raise Unusable("the task's expected values need 'expected': a text, a number, or a list of them")
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
    """The number that a text is, with or without commas between thousands; None: it is none, or too large."""
    text = text.strip()
    if not text or not _NUMBER.fullmatch(text) or not any(map(str.isdigit, text)):
        return None
    found = float(text.replace(",", ""))
    return found if math.isfinite(found) else None


def make(options: Mapping[str, Any], surroundings: Surroundings) -> Exact:
    """From options."""
    return Exact(read(ExactOptions, options))
