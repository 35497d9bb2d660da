"""Inserts: waits while the store is away, and sets aside exactly the rows that it can never take."""

from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, DataError, OperationalError

from stepstream.config import Settings
from stepstream.jobs.clickhouse import insert
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.runtime.retry import Cancelled

FAULT = "does not fit the table steps (DataError)"


class FakeStore:
    """Accepts rows of integers; is unavailable for a given number of calls."""

    def __init__(self, away: int = 0, error: Exception | None = None) -> None:
        self.error = error or OperationalError("connection refused")
        self.calls = 0
        self.taken: list[Any] = []
        self.away = away

    def create_insert_context(self, table: str, column_names: Any) -> Any:
        return type("Context", (), {"data": None})()

    def insert(self, context: Any) -> None:
        self.calls += 1
        if self.away:
            self.away -= 1
            raise self.error
        if any(not isinstance(row, int) for row in context.data):
            raise DataError("cannot convert")
        self.taken += context.data

    def query(self, text: str) -> None:
        raise self.error

    def close(self) -> None:
        pass


def inserter(monkeypatch: pytest.MonkeyPatch, store: FakeStore, *, cancelled: bool = False) -> Inserter:
    monkeypatch.setattr(insert, "connect", lambda *_, **__: store)
    monkeypatch.setattr("stepstream.jobs.runtime.retry.time.sleep", lambda _: None)
    return Inserter(Settings(), lambda: cancelled)


def test_bad_rows_are_found_among_good_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    rows: list[Any] = [0, 1, "bad", 3, 4, 5, "worse"]
    assert inserter(monkeypatch, store).insert("steps", rows) == {2: FAULT, 6: FAULT}
    assert store.taken == [0, 1, 3, 4, 5]


def test_an_unavailable_clickhouse_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore(away=5)
    rows: list[Any] = [1, 2]
    assert inserter(monkeypatch, store).insert("steps", rows) == {}
    assert store.taken == [1, 2]


def test_a_cancelled_insert_stops_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = [1]
    with pytest.raises(Cancelled):
        inserter(monkeypatch, FakeStore(away=100), cancelled=True).insert("steps", rows)


@pytest.mark.parametrize(("code", "rows", "calls"), [(53, {0, 1}, 4), (47, {0, 1}, 1), (469, {0, 1}, 4)])
def test_a_refusal_that_does_not_mend_itself_is_reported_without_values(
    monkeypatch: pytest.MonkeyPatch, code: int, rows: set[int], calls: int
) -> None:
    store = FakeStore(away=100, error=DatabaseError("Code: the value 'secret'", code=code))
    batch: list[Any] = [1, 2]
    refused = inserter(monkeypatch, store).insert("steps", batch)
    assert refused.keys() == rows
    assert all(f"({code})" in reason and "secret" not in reason for reason in refused.values())
    assert store.calls <= calls


@pytest.mark.parametrize("code", [None, 159, 202, 241, 242, 243, 252, 516, 999])
def test_a_fault_of_the_server_is_retried(monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    batch: list[Any] = [1]
    store = FakeStore(away=3, error=DatabaseError("busy", code=code))
    assert inserter(monkeypatch, store).insert("steps", batch) == {}
    assert store.taken == [1]


@pytest.mark.parametrize("error", [OperationalError("connection refused"), DatabaseError("no access", code=497)])
def test_an_unavailable_clickhouse_has_no_ages(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    one = inserter(monkeypatch, FakeStore(error=error))
    assert (one.refresh_lag_s(), one.rewriting_age_s()) == (None, None)
