"""A rewriting is due at each multiple of its interval."""

import pytest

from stepstream.jobs.clickhouse.hidden_rows import last_due_s, next_due_s

MIDNIGHT_S = 20_000 * 86_400


@pytest.mark.parametrize("passed_s", [0.0, 0.5, 86_399.9])
def test_a_daily_rewriting_is_due_at_midnight(passed_s: float) -> None:
    assert last_due_s(MIDNIGHT_S + passed_s, 24) == MIDNIGHT_S
    assert next_due_s(MIDNIGHT_S + passed_s, 24) == MIDNIGHT_S + 86_400


def test_the_interval_is_in_hours() -> None:
    assert last_due_s(MIDNIGHT_S + 7 * 3600 + 1, 6) == MIDNIGHT_S + 6 * 3600
    assert next_due_s(MIDNIGHT_S + 7 * 3600 + 1, 6) == MIDNIGHT_S + 12 * 3600


def test_none_is_due_without_an_interval() -> None:
    assert (last_due_s(MIDNIGHT_S, 0), next_due_s(MIDNIGHT_S, 0)) == (None, None)
