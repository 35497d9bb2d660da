"""Recall and precision over a small corpus; `bench/govern.py` measures the large one."""

import pytest
from redaction_corpus import corpus
from redaction_corpus.measuring import measure, survives, unfolded

from stepstream.jobs.governance.govern_step import govern_step
from stepstream.jobs.redaction import Redactor


@pytest.mark.parametrize("half", ["development", "held_out"])
def test_recall_and_precision_are_high(half: str) -> None:
    redactor = Redactor(b"key")
    outcome = measure(corpus(half, 1200, seed=5), lambda step: govern_step("test@1", step, True, redactor)[0])
    assert outcome.planted.total() >= 1200
    assert outcome.recall >= 0.995, outcome.misses
    assert outcome.precision >= 0.98, outcome.wrongs


def test_the_measure_counts_a_value_that_remains() -> None:
    outcome = measure(corpus("development", 200, seed=6), lambda step: govern_step("test@1", step, True, Blind())[0])
    assert outcome.recall < 0.02
    assert outcome.precision == 1.0


def test_the_measure_counts_half_of_a_value() -> None:
    assert survives("4111111111111111", unfolded("card 41111111<CARD:0123456789ab>"))
    assert not survives("4111111111111111", unfolded("card <CARD:0123456789ab>"))
    assert survives("ada@example.org", unfolded("YWRhQGV4YW1wbGUub3Jn"))


class Blind(Redactor):
    """Finds nothing."""

    def __init__(self) -> None:
        super().__init__(b"")

    def suspects(self, texts: object) -> set[int]:
        return set()
