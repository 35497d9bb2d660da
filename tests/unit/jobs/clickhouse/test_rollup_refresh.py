"""Refreshes run one after the other, and each writes versions of its own."""

import re
from typing import Any, cast

import pytest
from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.rollup_refresh import REFRESHED, ROLLUPS, create_refreshes, statement


class Commands:
    """A client that keeps the statements."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def command(self, text: str, **_: Any) -> None:
        self.texts.append(text)


@pytest.mark.parametrize("every_s", [1, 2, 10, 60])
def test_the_refreshes_of_the_rollups_are_spread_over_their_interval(every_s: int) -> None:
    client = Commands()
    create_refreshes(cast("Client", client), {}, every_s)
    created = [text for text in client.texts if text.startswith("CREATE")]
    offsets = [re.search(r"REFRESH EVERY (\d+) SECOND(?: OFFSET (\d+) SECOND)? APPEND", text) for text in created]
    seconds = [int(found[2] or 0) for found in offsets if found and int(found[1]) == every_s]
    assert len(seconds) == len(REFRESHED)
    assert max(seconds) < every_s
    most = max(seconds.count(second) for second in seconds)
    assert most == -(-len(REFRESHED) // every_s)


@pytest.mark.parametrize("rollup", ROLLUPS)
def test_no_two_replicas_write_the_same_version(rollup: str) -> None:
    alone, replica = statement(rollup, {}), statement(rollup, {}, "c's")
    assert alone.count("now64(6, 'UTC') AS version") == 1
    assert "now64(6" not in replica
    assert "WHERE cluster = 'c\\'s' AND is_local" in replica


@pytest.mark.parametrize("rollup", ROLLUPS)
def test_one_thread_inserts_so_that_an_hour_becomes_visible_at_once(rollup: str) -> None:
    assert statement(rollup, {}).endswith("\nSETTINGS max_insert_threads = 1")
