"""Check that the embedded store gives nothing but its own tables: no files, addresses, programs, endless work."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from clickhouse_connect.driver.external import ExternalData
from clickhouse_http import client_of, post, url_of
from store_fixtures import StoreProcess, store_process
from waiting import TIMEOUT_S

from stepstream.config import Settings

SECRET = "planted-in-a-file"
# Codes by which the engine and the store refuse: SYNTAX_ERROR, SUPPORT_IS_DISABLED, READONLY, UNSUPPORTED_METHOD,
# SETTING_CONSTRAINT_VIOLATION, ACCESS_DENIED and, of a file as a table, UNKNOWN_TABLE.
REFUSED = {"62", "344", "164", "1", "452", "497", "60"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    store = store_process(
        tmp_path_factory.mktemp("closed"),
        store={"query_s": "2", "query_memory_bytes": "100000000", "result_bytes": "5000000"},
    )
    store.start()
    post(url_of(store.settings), b"CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY a")
    yield store
    store.stop()


@pytest.fixture(scope="module")
def writer(store: StoreProcess) -> str:
    return url_of(store.settings)


@pytest.fixture(scope="module")
def reader(store: StoreProcess) -> str:
    return url_of(store.settings, reads_only=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "secret.txt").write_text(SECRET)
    return folder


_SECRET_STRUCTURE = "a String, b String DEFAULT file(\\'{secret}\\')"
HOLES = {
    "file() as a function": "SELECT file('{secret}')",
    "file() by another case of quotes": "SELECT `file`('{secret}')",
    "file() in APPLY": "SELECT * APPLY(file) FROM (SELECT '{secret}')",
    "file() in a lambda": "SELECT arrayMap(x -> file(x), ['{secret}'])",
    "file() after a comment": "SELECT /* , */ file -- (\n ('{secret}')",
    "file()": "SELECT * FROM file('{secret}', 'LineAsString')",
    "file() described": "DESCRIBE file('{secret}', 'LineAsString')",
    "file() in a subquery": "SELECT 1 WHERE 'x' IN (SELECT * FROM file('{secret}', 'LineAsString'))",
    "file() in a view()": "SELECT * FROM view(SELECT * FROM file('{secret}', 'LineAsString'))",
    "a default in format()": f"SELECT * FROM format(JSONEachRow, '{_SECRET_STRUCTURE}', '{{{{\"a\": 1}}}}')",
    "format() without the analyzer": "SELECT 1 IN format(JSONEachRow, 'a UInt8', '1') SETTINGS enable_analyzer = 0",
    "hidden rows": "SELECT * FROM t SETTINGS apply_deleted_mask = 0",
    "python()": "SELECT * FROM python(settings)",
    "a file as a table": "SELECT * FROM `{secret}`",
    "FROM INFILE": "INSERT INTO t FROM INFILE '{secret}' FORMAT LineAsString",
    "VALUES": "INSERT INTO t VALUES (file('{secret}'))",
    "VALUES and a statement": "INSERT INTO t SELECT 'x'; SELECT file('{secret}')",
    "VALUES with expressions": "INSERT INTO t SETTINGS input_format_values_interpret_expressions = 1 "
    "VALUES (file('{secret}'))",
    "a format schema": "SELECT * FROM t SETTINGS format_schema = '{secret}:x' FORMAT Protobuf",
    "a filter setting": "SELECT * FROM t SETTINGS additional_result_filter = 'file(\\'{secret}\\') != \\'\\''",
    "url()": "SELECT * FROM url('{url}', 'LineAsString')",
    "url() described": "DESCRIBE url('{url}')",
    "s3()": "SELECT * FROM s3('{url}bucket/key', 'TSV', 'a String')",
    "gcs()": "SELECT * FROM gcs('{url}bucket/key', 'TSV', 'a String')",
    "deltaLake()": "SELECT * FROM deltaLake('{url}bucket/key')",
    "remote()": "SELECT * FROM remote('{host}', 'system', 'one')",
    "cluster()": "SELECT * FROM cluster('default', view(SELECT 1))",
    "mysql()": "SELECT * FROM mysql('{host}', 'a', 'b', 'c', 'd')",
    "postgresql()": "SELECT * FROM postgresql('{host}', 'a', 'b', 'c', 'd')",
    "mongodb()": "SELECT * FROM mongodb('{host}', 'a', 'b', 'c', 'd', 'a String')",
    "redis()": "SELECT * FROM redis('{host}', 'a', 'a String')",
    "sqlite()": "SELECT * FROM sqlite('{out}', 't')",
    "executable()": "SELECT * FROM executable('cat', 'TSV', 'a String')",
    "aiGenerate()": "SELECT aiGenerate('a', 'b')",
    "INTO OUTFILE": "SELECT 1 INTO OUTFILE '{out}'",
    "INTO OUTFILE of EXPLAIN": "EXPLAIN SELECT 1 INTO OUTFILE '{out}'",
    "INTO OUTFILE of SHOW": "SHOW TABLES INTO OUTFILE '{out}'",
    "INTO OUTFILE of DESCRIBE": "DESCRIBE t INTO OUTFILE '{out}'",
    "INTO OUTFILE after a comment": "SELECT 1 INTO /* */ -- x\n outfile '{out}' TRUNCATE",
    "INSERT INTO FUNCTION file": "INSERT INTO FUNCTION file('{out}', 'TSV', 'a String') SELECT 'x'",
    "INSERT INTO FUNCTION file with data": "INSERT INTO FUNCTION file('{out}', 'TSV', 'a String') FORMAT TSV\nx",
    "INSERT INTO FUNCTION url": "INSERT INTO FUNCTION url('{url}', 'TSV', 'a String') SELECT 'x'",
    "INSERT INTO FUNCTION remote": "INSERT INTO FUNCTION remote('{host}', 'a.b') SELECT 1",
    "an output schema": "SELECT 1 SETTINGS output_format_schema = '{out}' FORMAT Protobuf",
    "error rows in a file": "INSERT INTO t SETTINGS input_format_record_errors_file_path = '{out}' FORMAT TSV\nx",
    "engine File": "CREATE TABLE f (a String) ENGINE = File(TSV)",
    "engine URL": "CREATE TABLE f (a String) ENGINE = URL('{url}', 'TSV')",
    "engine S3": "CREATE TABLE f (a String) ENGINE = S3('{url}bucket/key', 'TSV')",
    "engine Executable": "CREATE TABLE f (a String) ENGINE = Executable('cat', TSV)",
    "engine Distributed": "CREATE TABLE f (a String) ENGINE = Distributed('default', 'system', 'one')",
    "a temporary table of engine File": "CREATE TEMPORARY TABLE f (a String) ENGINE = File(TSV)",
    "a table of a function": "CREATE TABLE f AS file('{secret}', 'LineAsString')",
    "a default that reads a file": "CREATE TABLE f (a String DEFAULT file('{secret}')) ENGINE = Memory",
    "a view of a file": "CREATE VIEW f AS SELECT file('{secret}')",
    "an update from a file": "ALTER TABLE t UPDATE a = file('{secret}') WHERE 1",
    "a disk elsewhere": "CREATE TABLE f (a String) ENGINE = MergeTree ORDER BY a "
    "SETTINGS disk = disk(type = web, endpoint = '{url}')",
    "a local disk": "CREATE TABLE f (a String) ENGINE = MergeTree ORDER BY a "
    "SETTINGS disk = disk(type = local, path = '{out}/')",
    "a database of a folder": "CREATE DATABASE f ENGINE = Filesystem('/')",
    "a database elsewhere": "CREATE DATABASE f ENGINE = MySQL('{host}', 'a', 'b', 'c')",
    "a dictionary of a file": "CREATE DICTIONARY f (a String, b String) PRIMARY KEY a "
    "SOURCE(FILE(path '{secret}' format 'TSV')) LAYOUT(COMPLEX_KEY_HASHED()) LIFETIME(0)",
    "a dictionary of an address": "CREATE DICTIONARY f (a String, b String) PRIMARY KEY a "
    "SOURCE(HTTP(url '{url}' format 'TSV')) LAYOUT(COMPLEX_KEY_HASHED()) LIFETIME(0)",
    "ATTACH FROM": "ATTACH TABLE f FROM '{secret}' (a String) ENGINE = MergeTree ORDER BY a",
    "BACKUP": "BACKUP TABLE t TO File('{out}')",
    "RESTORE": "RESTORE TABLE t FROM File('{out}')",
    "CREATE FUNCTION": "CREATE FUNCTION f AS x -> file(x)",
    "CREATE NAMED COLLECTION": "CREATE NAMED COLLECTION f AS url = '{url}'",
    "CREATE USER": "CREATE USER f",
    "GRANT": "GRANT READ ON FILE TO default",
    "SYSTEM SHUTDOWN": "SYSTEM SHUTDOWN",
    "SYSTEM RELOAD CONFIG": "SYSTEM RELOAD CONFIG",
    "KILL QUERY": "KILL QUERY WHERE 1",
    "EXECUTE AS": "EXECUTE AS default SELECT 1",
    "another dialect": "SET dialect = 'prql'",
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_statement_reaches_nothing_outside_the_store(writer: str, files: Path, hole: str) -> None:
    out = files / "out"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        sql = HOLES[hole].format(secret=files / "secret.txt", out=out, url=f"http://{host}/", host=host)
        status, text, headers = post(writer, sql.encode())
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody connected
            listener.accept()
    stored = post(writer, b"SELECT * FROM t")[1]
    assert headers["X-ClickHouse-Exception-Code"] in REFUSED, (status, text)
    assert status >= 400
    assert SECRET.encode() not in text
    assert SECRET.encode() not in stored
    assert not out.exists()


def test_a_table_that_comes_with_a_query_has_no_expressions(writer: str, files: Path) -> None:
    structure = f"a String, b String DEFAULT file('{files / 'secret.txt'}')"
    data = ExternalData(file_name="x.json", fmt="JSONEachRow", structure=structure, data=b'{"a": "x"}')
    with client_of(writer) as client, pytest.raises(DatabaseError) as failed:
        client.query("SELECT * FROM x", external_data=data)
    assert failed.value.code == 497


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES ('x')",
        "CREATE TABLE g (a Int8) ENGINE = Memory",
        "DROP TABLE t",
        "SET max_threads = 1",
        "WITH 'x' AS a INSERT INTO t SELECT a",
        "SELECT 1 INTO OUTFILE '/tmp/x'",
    ],
)
@pytest.mark.parametrize("session", [{}, {"session_id": "get"}], ids=["no session", "session"])
def test_get_never_writes(writer: str, sql: str, session: dict[str, str]) -> None:
    status, text, headers = post(writer, None, query=sql, **session)
    assert headers["X-ClickHouse-Exception-Code"] in {"164", "497"}, text
    assert status >= 400
    assert post(writer, b"SELECT count() FROM t WHERE a = 'x'")[1] == b"0\n"


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES ('x')",
        "INSERT INTO t FORMAT TSV\nx",
        "CREATE TABLE g (a Int8) ENGINE = Memory",
        "DROP TABLE t",
        "ALTER TABLE t DELETE WHERE 1",
        "TRUNCATE TABLE t",
        "SET readonly = 0",
        "SELECT 1 SETTINGS readonly = 0",
        "OPTIMIZE TABLE t",
        "CREATE DATABASE g",
        "RENAME TABLE t TO g",
        "DELETE FROM t WHERE 1",
        "KILL QUERY WHERE 1",
    ],
)
def test_the_reading_account_never_writes(reader: str, sql: str) -> None:
    for session in ({}, {"session_id": "shared"}):
        _, text, headers = post(reader, sql.encode(), **session)
        assert headers["X-ClickHouse-Exception-Code"] in {"164", "497"}, text
    assert post(reader, b"SELECT count() FROM t")[0] == 200


def test_the_reading_account_reads_through_the_stock_client(reader: str) -> None:
    with client_of(reader) as client:
        assert client.query("SELECT count() FROM t", settings={"max_threads": 1}).result_rows == [(0,)]
        assert ("t",) in client.query("SHOW TABLES").result_rows
        data = ExternalData(file_name="ext.csv", fmt="CSV", structure=["n Int32"], data=b"1\n2\n")
        assert client.query("SELECT sum(n) FROM ext", external_data=data).first_row == (3,)


def test_the_accounts_do_not_share_sessions(reader: str, writer: str) -> None:
    post(writer, b"CREATE TEMPORARY TABLE mine (a Int8)", session_id="one name")
    assert post(reader, b"SELECT * FROM mine", session_id="one name")[2]["X-ClickHouse-Exception-Code"] == "60"
    assert post(reader, b"DROP TABLE t", session_id="one name")[2]["X-ClickHouse-Exception-Code"] == "164"


def test_a_statement_ends_at_its_limit_of_time(writer: str) -> None:
    text = post(writer, b"SELECT sum(cityHash64(number)) FROM numbers(1000000000000)")[1]
    assert b"TIMEOUT_EXCEEDED" in text


def test_a_statement_ends_at_its_limit_of_memory(writer: str) -> None:
    text = post(writer, b"SELECT groupArray(number) FROM numbers(1000000000)")[1]
    assert b"MEMORY_LIMIT_EXCEEDED" in text


def test_a_result_ends_at_its_limit_of_bytes(writer: str) -> None:
    text = post(writer, b"SELECT number FROM numbers(100000000)", wait_end_of_query="1")[1]
    assert b"TOO_MANY_ROWS_OR_BYTES" in text


@pytest.mark.parametrize("limit", ["max_execution_time", "max_memory_usage", "max_result_bytes"])
@pytest.mark.parametrize("value", ["0", "999999999999"])
def test_a_statement_cannot_lift_its_limits(reader: str, writer: str, limit: str, value: str) -> None:
    for url in (reader, writer):
        for sql, params in (
            (f"SET {limit} = {value}", {}),
            (f"SELECT 1 SETTINGS {limit} = {value}", {}),
            ("SELECT 1", {limit: value}),
        ):
            text = post(url, sql.encode(), **params)[1]
            assert b"SETTING_CONSTRAINT_VIOLATION" in text, (sql, text)


@pytest.mark.parametrize(
    "headers", [{}, {"X-ClickHouse-User": "default"}, {"X-ClickHouse-User": "reader", "X-ClickHouse-Key": "x"}]
)
def test_nobody_queries_without_a_password(store: StoreProcess, headers: dict[str, str]) -> None:
    request = urllib.request.Request(f"{store.url}/?query=SELECT%201", headers=headers)
    with pytest.raises(urllib.error.HTTPError) as failed:
        urllib.request.urlopen(request, timeout=TIMEOUT_S)
    with failed.value:
        assert failed.value.code == 403


@pytest.mark.parametrize(
    "headers", [{"Host": "localhost.evil.example"}, {"Origin": "https://evil.example"}], ids=["host", "origin"]
)
def test_a_page_of_another_site_reads_no_table(store: StoreProcess, writer: str, headers: dict[str, str]) -> None:
    address = urlsplit(writer)
    credentials = {"X-ClickHouse-User": str(address.username), "X-ClickHouse-Key": unquote(str(address.password))}
    query = f"{store.url}/?query=SELECT%2041%2B1"
    with urllib.request.urlopen(urllib.request.Request(query, headers=credentials), timeout=TIMEOUT_S) as reply:
        assert reply.read() == b"42\n"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(query, headers=credentials | headers), timeout=TIMEOUT_S)
    with refused.value:
        assert refused.value.code == 403
        assert b"http.allowed_" in refused.value.read()


@pytest.mark.parametrize("path", ["ping", "ready"])
def test_ping_and_readiness_need_no_password(store: StoreProcess, path: str) -> None:
    with urllib.request.urlopen(f"{store.url}/{path}", timeout=TIMEOUT_S) as reply:
        assert reply.read() == b"Ok.\n"


def test_passwords_are_random_and_private(store: StoreProcess) -> None:
    settings: Settings = store.settings
    files = [settings.paths.data / "secrets" / name for name in ("clickhouse.password", "clickhouse-reader.password")]
    assert len({file.read_text() for file in files}) == 2
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        assert len(file.read_text()) >= 32
        assert file.read_text() not in store.log.read_text()
