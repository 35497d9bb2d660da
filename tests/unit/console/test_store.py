"""Test how the console's store tells outages from errors of one statement."""

from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from stepstream.config import load
from stepstream.services.console.store import QueryFailed, Store, Unavailable

GOOD = "SELECT 1 AS n"


class Client:
    """Answers a row to `GOOD`, and fails on any other statement."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_closed = False

    def query(self, sql: str, parameters: dict[str, Any]) -> Any:
        if sql != GOOD:
            raise self.error
        return self

    def named_results(self) -> list[dict[str, Any]]:
        return [{"n": 1}]

    def close(self) -> None:
        self.is_closed = True


def store_of(monkeypatch: pytest.MonkeyPatch, error: Exception) -> tuple[Store, list[Client]]:
    clients: list[Client] = []

    def connect(*args: Any, **options: Any) -> Client:
        clients.append(Client(error))
        return clients[-1]

    monkeypatch.setattr("stepstream.services.console.store.connect", connect)
    return Store(load({}), clock=lambda: 0.0), clients


@pytest.mark.parametrize("code", [47, 70, 241])
def test_an_error_of_a_statement_is_no_outage(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    store, clients = store_of(monkeypatch, DatabaseError("no such column", code=code))
    assert store.query(GOOD) == [{"n": 1}]
    with pytest.raises(QueryFailed, match="no such column"):
        store.query("SELECT x")
    assert store.query(GOOD) == [{"n": 1}]  # its answer is kept
    assert len(clients) == 1


@pytest.mark.parametrize(
    "error",
    [
        DatabaseError("no table", code=60),
        DatabaseError("no database", code=81),
        DatabaseError("wrong password", code=516),
        DatabaseError("502 of a proxy"),
        OperationalError("refused"),
        ConnectionResetError(),
    ],
    ids=["table", "database", "password", "proxy", "transport", "socket"],
)
def test_an_outage_forgets_the_answers(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    store, clients = store_of(monkeypatch, error)
    assert store.query(GOOD) == [{"n": 1}]
    with pytest.raises(Unavailable):
        store.query("SELECT x")
    assert clients[0].is_closed
    assert store.query(GOOD) == [{"n": 1}]
    assert len(clients) == 2
