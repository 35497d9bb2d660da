"""Test the console's HTTP answers with a real store, and without one."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from console_process import console, insert_rows
from store_fixtures import StoreProcess, store_process
from waiting import TIMEOUT_S, wait_until

from stepstream.jobs.clickhouse.migrate import migrate


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_overview_summarizes_the_tables(own_store: StoreProcess, tmp_path: Path) -> None:
    settings = own_store.settings
    migrate(settings)
    with console(settings, tmp_path) as url:
        status, empty = get(f"{url}/api/overview")
        assert (status, empty["models"], empty["success"]) == (200, [], [])
        insert_rows(settings)

        def shows_all() -> bool:
            # The console answers each query from memory for a second or more: the answers to the first call end apart.
            overview = get(f"{url}/api/overview")[1]
            steps = sum(row["steps"] for row in overview["steps"])
            return (
                overview["models"] == ["demo"]
                and overview["alarms"] != []
                and (steps, len(overview["changes"])) == (20, 2)
            )

        wait_until(shows_all)
        wait_until(lambda: get(f"{url}/api/overview?model=demo")[1]["totals"]["trajectories"] == 20)
        _, overview = get(f"{url}/api/overview?model=demo")
        assert overview["model"] == "demo"
        newest = [row for row in overview["success"] if (row["split"], row["version"]) == ("eval", 1)]
        assert [(row["outcomes"], row["successes"]) for row in newest] == [(5, 4)]
        assert 0 < newest[0]["low"] < newest[0]["rate"] == 0.8 < newest[0]["high"] < 1
        assert overview["staleness"]["max"] == 0
        assert overview["staleness_bound"] == settings.learner.staleness_bound
        assert [row["version"] for row in overview["changes"]] == [1, 0]
        assert [(row["state"], row["rising"], row["falling"]) for row in overview["alarms"]] == [
            ("raised", "length", "success")
        ]
        assert get(f"{url}/api/overview?since=1y")[0] == 400


def test_it_answers_503_while_the_store_is_down(tmp_path: Path) -> None:
    store = store_process(tmp_path)
    with console(store.settings, tmp_path) as url:
        status, body = get(f"{url}/api/overview")
        assert status == 503
        assert "STEPSTREAM_CLICKHOUSE_URL" in body["error"]
        store.start()
        wait_until(lambda: "stepstream store migrate" in get(f"{url}/api/overview")[1].get("error", ""))
        migrate(store.settings)
        assert get(f"{url}/api/overview")[0] == 200
        store.kill()
        wait_until(lambda: get(f"{url}/api/overview")[0] == 503)


def test_it_serves_its_page_without_a_store(tmp_path: Path) -> None:
    with console(store_process(tmp_path).settings, tmp_path) as url:
        scripts = "static/main.js", "static/console.css", "static/vendor/uplot/LICENSE"
        for path in ("", "overview", *scripts, "metrics", "ready"):
            with urllib.request.urlopen(f"{url}/{path}", timeout=TIMEOUT_S) as reply:
                text = reply.read()
                policy = reply.headers["Content-Security-Policy"]
            assert text
            assert b"http://" not in text or "vendor" in path, f"{path} names another address"
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
