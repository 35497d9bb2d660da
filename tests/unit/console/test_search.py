"""Test the queries of a search."""

import pytest

from stepstream.services.console.trajectories.search import Cursor, Search, search_query, windows, words_of

DAY_MS = 86_400_000


def test_a_search_without_a_range_widens() -> None:
    assert list(windows(None, 100 * DAY_MS)) == [(99 * DAY_MS, 1), (93 * DAY_MS, 7), (10 * DAY_MS, 90)]
    assert list(windows(5, 100 * DAY_MS)) == [(5, 0)]


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
