"""Test the queries of a search."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stepstream.services.console.api.trajectories import trajectories
from stepstream.services.console.endpoints import Call, Services
from stepstream.services.console.trajectories.search import PAGE, Cursor, Search, search_query, windows, words_of
from stepstream.services.console.users import LOCAL

DAY_MS = 86_400_000
ROW = {"tenant": "default", "trajectory_id": "t", "opened_ms": 1}


class Store:
    """Keeps the parameters of each query; all trajectories began in the last `busy_days` days, more than a page."""

    def __init__(self, busy_days: int) -> None:
        self.asked: list[dict[str, Any]] = []
        self._begin_ms = time.time_ns() // 1_000_000 - busy_days * DAY_MS

    def query(self, sql: str, parameters: dict[str, Any], *, fresh_s: float = 1.0) -> list[dict[str, Any]]:
        self.asked.append(parameters)
        return [ROW] * (PAGE + 1) if parameters["since"] <= self._begin_ms + DAY_MS // 2 else []


def ask(store: Store, **parameters: str) -> Any:
    assert trajectories.read is not None
    return trajectories.read(Call(LOCAL, cast(Services, SimpleNamespace(store=store)), parameters))


def test_a_search_without_a_range_widens() -> None:
    assert list(windows(None, 100 * DAY_MS)) == [(99 * DAY_MS, 1), (93 * DAY_MS, 7), (10 * DAY_MS, 90)]
    assert list(windows(5, 100 * DAY_MS)) == [(5, 0)]


@pytest.mark.parametrize(("busy_days", "queries"), [(1, 1), (7, 2), (90, 3)])
def test_the_first_window_is_the_last_day(busy_days: int, queries: int) -> None:
    store = Store(busy_days)
    answer = ask(store)
    assert (len(store.asked), answer["days"], len(answer["trajectories"])) == (queries, busy_days, PAGE)
    now_ms = time.time_ns() // 1_000_000
    assert all(of["until"] > now_ms for of in store.asked), "the clock of a producer may be fast"


def test_a_past_end_ends_each_window() -> None:
    store = Store(1)
    assert ask(store, until=str(100 * DAY_MS))["days"] == 1
    assert (store.asked[0]["since"], store.asked[0]["until"]) == (99 * DAY_MS, 100 * DAY_MS)


def test_a_further_page_reads_nothing_newer_than_its_cursor() -> None:
    _, parameters = search_query(Search({}), 0, 9000, Cursor(5000, "default", "t"))
    assert (parameters["since"], parameters["until"]) == (0, 5001)
    _, parameters = search_query(Search({}), 0, 9000, Cursor(2**53 - 1, "default", "t"))
    assert parameters["until"] == 9000


@pytest.mark.parametrize("tenant", ["default", "a/b", "50%", "%2F"])
def test_a_cursor_survives_its_text(tenant: str) -> None:
    cursor = Cursor(12, tenant, "t/1/2")
    assert Cursor.parse(str(cursor)) == cursor


@pytest.mark.parametrize("text", ["", "1", "x/y/z", "1/2", "-1/y/z", "٣/y/z", f"{2**53}/y/z", f"{10**20 - 1}/x/y"])
def test_other_texts_are_no_cursor(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Cursor.parse(text)


def test_words_are_those_of_the_index() -> None:
    assert words_of("Get_user  'x' get") == ("get", "user", "x")
    assert words_of("!?") == ()
    assert len(words_of(" ".join(map(str, range(20))))) == 8


def test_values_are_parameters_and_never_part_of_the_query() -> None:
    hostile = "'); DROP TABLE steps --"
    sql, parameters = search_query(Search({"agent": hostile, "id": hostile}, "failure", (hostile,)), 0, 1)
    assert hostile not in sql
    assert parameters["agent"] == hostile
    with pytest.raises(KeyError):
        search_query(Search({hostile: 1}), 0, 1)
