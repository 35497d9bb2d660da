"""Check the store as a process: durability under kill -9, and messages of faults at start."""

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError
from store_fixtures import StoreProcess, store_process
from waiting import TIMEOUT_S, wait_until

from stepstream.cli.doctor_services import store as doctor_of_store
from stepstream.config import ClickHouseSettings, Settings, environment_of
from stepstream.config.secrets import store_credentials
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.migrate import migrate, migrations


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    store = store_process(tmp_path_factory.mktemp("store"))
    store.start()
    yield store
    store.stop()


def run(settings: Settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stepstream.services.store"],
        env={**os.environ, **environment_of(settings)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def last_error_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1, result.stderr
    lines = result.stderr.strip().splitlines()
    assert not any("Traceback" in line for line in lines), result.stderr
    return lines[-1]


@pytest.mark.parametrize("reads_only", [False, True], ids=["writer", "reader"])
def test_queries_wait_for_no_costly_optimization(store: StoreProcess, reads_only: bool) -> None:
    query = """
    SELECT name FROM system.settings WHERE value = '0' AND name IN (
        'compile_expressions', 'compile_aggregate_expressions', 'compile_sort_description',
        'optimize_and_compare_chain')
    """
    with connection.connect(store.settings, reads_only=reads_only) as client:
        assert len(client.query(query).result_rows) == 4


def test_no_acknowledged_row_is_lost_to_kill_9(own_store: StoreProcess) -> None:
    where = own_store.settings
    with connection.connect(where) as client:
        client.command("CREATE TABLE t (worker UInt8, n UInt64) ENGINE = MergeTree ORDER BY (worker, n)")
    acknowledged = [0, 0]

    def insert(worker: int) -> None:
        with connection.connect(where) as client:
            while True:
                first = acknowledged[worker]
                rows = [(worker, n) for n in range(first, first + 50)]
                try:
                    client.insert("t", rows, column_names=["worker", "n"])
                except (ClickHouseError, OSError):
                    return
                acknowledged[worker] = first + 50

    for number in range(2):
        threads = [threading.Thread(target=insert, args=(worker,)) for worker in range(2)]
        for thread in threads:
            thread.start()
        goal = sum(acknowledged) + 1000
        wait_until(lambda goal=goal: sum(acknowledged) >= goal, f"inserts before kill {number}")  # type: ignore[misc]
        own_store.kill()
        for thread in threads:
            thread.join(TIMEOUT_S)
        own_store.start()
        with connection.connect(where) as client:
            for worker, count in enumerate(acknowledged):
                stored = client.command(
                    f"SELECT uniqExact(n) FROM t WHERE worker = {worker} AND n < {{count:UInt64}}",
                    parameters={"count": count},
                )
                assert stored == count


def test_a_deletion_empties_the_kept_answers(own_store: StoreProcess) -> None:
    asks = "SELECT a FROM kept SETTINGS use_query_cache = 1, query_cache_ttl = 600"
    with connection.connect(own_store.settings) as client:
        client.command("CREATE TABLE kept (a String) ENGINE = MergeTree ORDER BY a")
        client.insert("kept", [("erased",)], column_names=["a"])
        assert client.query(asks).result_rows == [("erased",)]
        client.insert("kept", [("new",)], column_names=["a"])
        assert client.query(asks).result_rows == [("erased",)]
        client.command("ALTER TABLE kept DELETE WHERE a = 'erased'", settings={"mutations_sync": 2})
        assert client.query(asks).result_rows == [("new",)]


def test_a_dropped_database_is_created_for_the_next_request(own_store: StoreProcess) -> None:
    with connection.connect(own_store.settings) as client:
        assert client.command("SELECT 1") == 1
        client.command(f"DROP DATABASE {own_store.settings.clickhouse.database} SYNC")
        for _ in range(3):
            assert client.query("SELECT currentDatabase()").result_rows == [(own_store.settings.clickhouse.database,)]
        client.command("CREATE TABLE again (a String) ENGINE = MergeTree ORDER BY a")


def test_sigterm_lets_a_running_query_end(own_store: StoreProcess) -> None:
    assert own_store.process is not None
    replies: list[object] = []

    def slow() -> None:
        with connection.connect(own_store.settings) as client:
            started.set()
            replies.append(client.command("SELECT sum(sleepEachRow(0.5)) + 7 FROM numbers(3)"))

    started = threading.Event()
    thread = threading.Thread(target=slow)
    thread.start()
    started.wait(TIMEOUT_S)
    metric = "stepstream_store_running 1.0"
    wait_until(lambda: metric in metrics(own_store))
    assert own_store.stop() == 0
    thread.join(TIMEOUT_S)
    assert replies == [7]


def metrics(store: StoreProcess) -> str:
    with urllib.request.urlopen(f"{store.url}/metrics", timeout=TIMEOUT_S) as reply:
        return str(reply.read().decode())


def test_an_incomplete_body_stores_nothing(store: StoreProcess) -> None:
    with connection.connect(store.settings) as client:
        client.command("CREATE TABLE half (n UInt64) ENGINE = MergeTree ORDER BY n")
        port, credentials = store.settings.store.port, store_credentials(store.settings)
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as broken:
            broken.sendall(
                b"POST /?query=INSERT+INTO+half+FORMAT+TSV HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Authorization: Basic " + base64.b64encode(":".join(credentials).encode()) + b"\r\n"
                b"Content-Length: 1000\r\n\r\n1\n2\n"
            )
            wait_until(lambda: "stepstream_store_running 1.0" in metrics(store))
        wait_until(lambda: "stepstream_store_running 0.0" in metrics(store))
        assert client.command("SELECT count() FROM half") == 0
    assert "Traceback" not in store.log.read_text()


def test_metrics_count_rows_and_queries(store: StoreProcess) -> None:
    with connection.connect(store.settings) as client:
        client.command("CREATE TABLE t (n UInt64) ENGINE = Memory")
        client.insert("t", [[1], [2]], column_names=["n"])
        with pytest.raises(DatabaseError):
            client.query("SELECT nope")
    text = metrics(store)
    assert "stepstream_store_inserted_rows_total 2.0" in text
    assert 'stepstream_store_queries_total{kind="select",outcome="failed"} 1.0' in text


def test_a_port_in_use_is_an_error_with_a_remedy(store: StoreProcess, tmp_path: Path) -> None:
    paths = store.settings.paths.model_copy(update={"data": tmp_path / "other"})
    line = last_error_line(run(store.settings.model_copy(update={"paths": paths})))
    assert f"127.0.0.1:{store.settings.store.port} is in use" in line
    assert "STEPSTREAM_STORE_PORT" in line


def test_a_folder_in_use_is_an_error_with_a_remedy(store: StoreProcess) -> None:
    other = store_process(store.settings.paths.data)
    line = last_error_line(run(other.settings))
    assert "is open in another process" in line
    assert "STEPSTREAM_PATHS_DATA" in line


def test_the_default_database_is_the_configured_one(store: StoreProcess) -> None:
    with connection.connect(store.settings) as client:
        assert client.query("SELECT name, engine FROM system.databases WHERE name = currentDatabase()").result_rows == [
            ("stepstream", "Atomic")
        ]


def test_a_password_is_required(tmp_path: Path) -> None:
    store = store_process(tmp_path, user="ada", password="se:cret é")
    store.start()
    try:
        with connection.connect(store.settings) as client:
            assert client.command("SELECT 1") == 1
        clickhouse = store.settings.clickhouse.model_copy(update={"user": "default"})
        wrong = store.settings.model_copy(update={"clickhouse": clickhouse})
        with pytest.raises(connection.StoreUnavailableError, match="STEPSTREAM_CLICKHOUSE_PASSWORD"):
            connection.connect(wrong)
        request = urllib.request.Request(f"{store.url}/?query=SELECT%201%20FORMAT%20JSONEachRow")
        request.add_header("X-ClickHouse-User", "ada")
        request.add_header("X-ClickHouse-Key", "se:cret é".encode().decode("latin-1"))
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            assert json.loads(reply.read()) == {"1": 1}
    finally:
        store.stop()


def test_a_dropped_database_can_be_created_again(store: StoreProcess) -> None:
    where = store.settings
    with connection.connect(where) as client:
        client.command(f"DROP DATABASE {where.clickhouse.database}")
    assert doctor_of_store(store.settings).fix == "run `stepstream store migrate`"
    assert migrate(store.settings) == [migration.name for migration in migrations()]
    assert doctor_of_store(store.settings).state == "ok"
    with pytest.raises(connection.StoreUnavailableError, match="has no database 'other': run `stepstream"):
        connection.connect(where, database="other")


def test_an_address_without_a_store_is_one_short_error() -> None:
    with pytest.raises(connection.StoreUnavailableError, match=r"CLICKHOUSE_URL \(Connection refused\)\Z"):
        connection.connect(Settings(clickhouse=ClickHouseSettings(url="http://127.0.0.1:1")))
