"""Check that fuzzing finds what it looks for: exceptions, endless cases and growth."""

import random

import fuzzing
import pytest
from fuzzing import fuzz


def test_a_target_is_given_as_many_cases_as_asked_for() -> None:
    seen: list[float] = []
    fuzz(lambda rng: seen.append(rng.random()), 2_000)
    assert len(set(seen)) == 2_000


def test_an_exception_is_found() -> None:
    def target(rng: random.Random) -> None:
        if rng.random() < 0.01:
            raise KeyError("name")

    with pytest.raises(KeyError):
        fuzz(target, 2_000)


def test_an_endless_case_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def target(rng: random.Random) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzzing, "CASE_S", 0.01)
    with pytest.raises(pytest.fail.Exception, match="has not ended"):
        fuzz(target, 20)


def test_growth_is_found() -> None:
    kept: list[list[float]] = []
    with pytest.raises(AssertionError, match="blocks of memory more"):
        fuzz(lambda rng: kept.append([rng.random() for _ in range(10)]), 2_000)
