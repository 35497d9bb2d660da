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


def test_the_snapshot_summarizes_the_tables(own_store: StoreProcess, tmp_path: Path) -> None:
    settings = own_store.settings
    migrate(settings)
    with console(settings, tmp_path) as url:
        status, empty = get(f"{url}/api/snapshot")
        assert (status, empty["models"], empty["success"]) == (200, [], [])
        insert_rows(settings)
        wait_until(lambda: get(f"{url}/api/snapshot")[1]["models"] == ["demo"])
        wait_until(lambda: bool(get(f"{url}/api/snapshot")[1]["totals"][0]["steps"]))
        _, snapshot = get(f"{url}/api/snapshot?model=demo")
        assert snapshot["model"] == "demo"
        newest = [row for row in snapshot["success"] if (row["split"], row["version"]) == ("eval", 1)]
        assert [(row["outcomes"], row["successes"]) for row in newest] == [(5, 4)]
        assert 0 < newest[0]["low"] < newest[0]["rate"] == 0.8 < newest[0]["high"] < 1
        assert len(snapshot["steps"]) == 120
        assert sum(row["steps"] for row in snapshot["steps"]) == 20
        assert snapshot["totals"] == [{"steps": 20, "trajectories": 20}]
        assert max(row["max"] for row in snapshot["staleness"]) == 0
        assert snapshot["staleness_bound"] == settings.learner.staleness_bound
        assert [(row["worker_id"], row["version"]) for row in snapshot["workers"]] == [("worker-0", 1)]
        assert [row["version"] for row in snapshot["checkpoints"]] == [1, 0]
        assert snapshot["learner"] == [
            {"updates": 1, "total_s": 8.0, "train": 0.75, "wait": 0.125, "read": 0.125, "fold": 0.0, "publish": 0.0}
        ]
        assert len(snapshot["trajectories"]) == 12
        assert [(row["name"], row["events"]) for row in snapshot["feedback"]] == [("outcome", 1)]
        assert [(row["error"], row["records"]) for row in snapshot["dead_letters"]] == [("malformed", 1)]
        assert [(row["name"], row["version"], row["mean"]) for row in snapshot["components"]] == [
            ("cap:reward", 0, -0.1),  # mean over ten trajectories; the guard capped one
            ("cap:reward", 1, -0.1),
            ("reward", 0, 0.5),
            ("reward", 1, 0.5),
            ("success", 0, 0.5),
            ("success", 1, 0.5),
        ]
        assert [(row["state"], row["rising"], row["falling"]) for row in snapshot["alarms"]] == [
            ("raised", "length", "success")
        ]


def test_it_answers_503_while_the_store_is_down(tmp_path: Path) -> None:
    store = store_process(tmp_path)
    with console(store.settings, tmp_path) as url:
        status, body = get(f"{url}/api/snapshot")
        assert status == 503
        assert "STEPSTREAM_CLICKHOUSE_URL" in body["error"]
        store.start()
        wait_until(lambda: "stepstream store migrate" in get(f"{url}/api/snapshot")[1].get("error", ""))
        migrate(store.settings)
        assert get(f"{url}/api/snapshot")[0] == 200
        store.kill()
        wait_until(lambda: get(f"{url}/api/snapshot")[0] == 503)


def test_it_serves_its_page_without_a_store(tmp_path: Path) -> None:
    with console(store_process(tmp_path).settings, tmp_path) as url:
        for path in ("", "/static/main.js", "/static/console.css", "/static/vendor/uplot/LICENSE", "/metrics"):
            with urllib.request.urlopen(f"{url}{path}", timeout=TIMEOUT_S) as reply:
                text = reply.read()
            assert text
            assert b"http://" not in text or "vendor" in path, f"{path} names another address"
