"""Check the used part of ClickHouse's HTTP interface through the unmodified client.

The tests run against the embedded store, or against the real server of STEPSTREAM_TEST_CLICKHOUSE_URL
(http://user:password@host:8123).
"""

import asyncio
import datetime
import gzip
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Generator
from typing import Any
from urllib.parse import unquote, urlsplit

import clickhouse_connect
import lz4.frame
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zstandard
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError
from clickhouse_connect.driver.external import ExternalData
from clickhouse_http import NAMES, client_of, post, row
from waiting import TIMEOUT_S


@pytest.mark.parametrize("path", ["/ping", "/replicas_status", "/"])
def test_answers_ok(url: str, path: str) -> None:
    address = urlsplit(url)
    with urllib.request.urlopen(f"http://{address.hostname}:{address.port}{path}", timeout=TIMEOUT_S) as reply:
        assert reply.read() == b"Ok.\n"


def test_rows_round_trip(client: Client, table: str) -> None:
    rows = [row(n) for n in range(3)]
    assert client.insert(table, rows, column_names=NAMES).written_rows == 3
    assert [list(found) for found in client.query(f"SELECT * FROM {table} ORDER BY i").result_rows] == rows


def test_an_empty_insert_and_an_empty_result(client: Client, table: str) -> None:
    client.insert(table, [], column_names=NAMES)
    assert client.query(f"SELECT i FROM {table}").result_rows == []
    assert client.query(f"SELECT i, s FROM {table} LIMIT 0").column_names == ("i", "s")


def test_arrow_in_and_out(client: Client, table: str) -> None:
    sent = pa.table({"i": pa.array([1, 2], pa.uint64()), "s": ["x", "y"]})
    client.insert_arrow(table, sent)
    assert client.query_arrow(f"SELECT i, s FROM {table} ORDER BY i", use_strings=True).to_pydict() == sent.to_pydict()


def test_a_large_arrow_result_is_one_stream(client: Client) -> None:
    assert client.query_arrow("SELECT number FROM numbers(300000)").num_rows == 300_000


def test_data_frames_in_and_out(client: Client, table: str) -> None:
    client.insert_df(table, pd.DataFrame({"i": np.array([1, 2], np.uint64), "s": ["x", "y"]}))
    frame = client.query_df(f"SELECT i, s FROM {table} ORDER BY i")
    assert list(frame["s"]) == ["x", "y"]


def test_an_answer_is_kept_only_if_the_query_asks(url: str, client: Client, database: str, table: str) -> None:
    def ask(settings: str) -> bytes:
        return post(url, f"SELECT count() FROM {table}{settings}".encode(), database=database)[1]

    asks = " SETTINGS use_query_cache = 1, query_cache_ttl = 600"
    assert ask(asks) == b"0\n"
    client.insert(table, [row(1)], column_names=NAMES)
    assert ask(asks) == b"0\n"
    assert ask("") == b"1\n"
    assert ask(f"{asks}, max_threads = 1") == b"1\n"


def test_json_lines(client: Client, table: str) -> None:
    client.raw_insert(table, ["i", "s"], b'{"i":1,"s":"x"}\n{"i":2,"s":"y"}', fmt="JSONEachRow")
    assert (
        client.raw_query(f"SELECT i, s FROM {table} ORDER BY i", fmt="JSONEachRow")
        == b'{"i":1,"s":"x"}\n{"i":2,"s":"y"}\n'
    )


def test_values_and_insert_from_a_query(client: Client, table: str) -> None:
    client.command(f"INSERT INTO {table} (i, s) VALUES (1, 'a;b'), (2, 'FORMAT')")
    client.command(f"INSERT INTO {table} (i, s) SELECT number + 3, 'z' FROM numbers(2)")
    assert client.query(f"SELECT i, s FROM {table} ORDER BY i").result_rows == [
        (1, "a;b"),
        (2, "FORMAT"),
        (3, "z"),
        (4, "z"),
    ]


@pytest.mark.parametrize(
    "format",
    [
        "Native",
        "TSV",
        "TabSeparatedWithNames",
        "CSVWithNames",
        "JSON",
        "JSONCompact",
        "Parquet",
        "RowBinaryWithNamesAndTypes",
    ],
)
def test_results_are_complete_documents(client: Client, format: str) -> None:
    """A format with a header has it once, for any number of blocks."""
    small, large = (client.raw_query(f"SELECT number FROM numbers({n})", fmt=format) for n in (1, 200_000))
    header = {
        "TabSeparatedWithNames": b"number\n",
        "CSVWithNames": b'"number"\n',
        "JSON": b'"meta"',
        "JSONCompact": b'"meta"',
        "Parquet": b"PAR1",
        "RowBinaryWithNamesAndTypes": b"\x06number\x06UInt64",
    }.get(format)
    if header:
        assert large.count(header) == small.count(header)
    else:
        assert len(large) > 1000


def test_streams_rows(client: Client) -> None:
    total = 0
    with client.query_row_block_stream("SELECT number FROM numbers(500000)") as blocks:
        for block in blocks:
            total += sum(number for (number,) in block)
    assert total == 500_000 * 499_999 // 2


def test_a_stream_closed_early_frees_its_session(client: Client) -> None:
    with client.query_row_block_stream("SELECT number FROM numbers(5000000)") as blocks:
        next(iter(blocks))
    assert client.command("SELECT 1") == 1


def test_a_large_insert_is_read_in_parts(client: Client, table: str) -> None:
    text = "x" * 1000

    def lines() -> Generator[bytes, None, None]:
        for start in range(0, 20_000, 500):
            yield b"".join(b"%d\t%s\n" % (n, text.encode()) for n in range(start, start + 500))

    client.raw_insert(table, ["i", "s"], lines(), fmt="TSV")
    assert client.query(f"SELECT count(), uniqExact(i), sum(length(s)) FROM {table}").first_row == (
        20_000,
        20_000,
        20_000_000,
    )


def test_parameters_keep_their_values(client: Client) -> None:
    values = {"n": 41, "s": "q'u\\o\t\n\"`é", "a": ["1", "it's"], "d": datetime.date(2026, 1, 2), "x": None}
    query = "SELECT {n:Int32} + 1, {s:String}, {a:Array(String)}, {d:Date}, {x:Nullable(String)}"
    assert client.query(query, parameters=values).first_row == (42, values["s"], values["a"], values["d"], None)


def test_a_missing_parameter_is_an_error(client: Client) -> None:
    with pytest.raises(DatabaseError) as failed:
        client.query("SELECT {nope:Int32}")
    assert failed.value.code == 456


@pytest.mark.parametrize("session", [True, False], ids=["session", "no session"])
def test_settings_are_for_one_query_only(url: str, session: bool) -> None:
    with client_of(url, autogenerate_session_id=session) as client:
        read = "SELECT getSetting('max_block_size')"
        usual = client.command(read)
        assert client.command(read, settings={"max_block_size": 1234}) == 1234
        assert client.command(read) == usual
        with pytest.raises(DatabaseError):
            client.query("SELECT nope", settings={"max_block_size": 1234})
        assert client.command(read) == usual
        client.command("SELECT 1", settings={"max_block_size": 77, "max_threads": 1})
        with client_of(url) as other:
            assert other.command(read) == usual


def test_an_unknown_setting_is_an_error(url: str) -> None:
    status, text, headers = post(url, b"SELECT 1", no_such_setting="1")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (404, "115"), text


def test_a_session_keeps_settings_and_temporary_tables(client: Client, database: str) -> None:
    client.command("SET max_block_size = 555")
    client.command("CREATE TEMPORARY TABLE kept (x Int32)")
    client.command("INSERT INTO kept VALUES (7)")
    assert client.command("SELECT getSetting('max_block_size')", settings={"max_block_size": 9}) == 9
    assert client.command("SELECT getSetting('max_block_size')") == 555
    assert client.command("SELECT x FROM kept") == 7
    assert client.command("SELECT currentDatabase()") == database


def test_a_temporary_table_is_invisible_to_other_sessions(url: str, client: Client) -> None:
    client.command("CREATE TEMPORARY TABLE own (x Int32)")
    with client_of(url) as other, pytest.raises(DatabaseError) as failed:
        other.query("SELECT * FROM own")
    assert failed.value.code == 60


def test_a_session_is_for_one_request_at_a_time(url: str) -> None:
    session = uuid.uuid4().hex
    done = threading.Event()

    def slow() -> None:
        while post(url, b"SELECT sleep(1)", session_id=session)[0] != 200:
            pass  # a request of the main thread came first
        done.set()

    thread = threading.Thread(target=slow)
    thread.start()
    codes = set()
    while not done.is_set():
        codes.add(post(url, b"SELECT 1", session_id=session)[2]["X-ClickHouse-Exception-Code"])
        done.wait(0.02)
    thread.join()
    assert "373" in codes


def test_session_check_requires_an_existing_session(url: str) -> None:
    _, _, headers = post(url, b"SELECT 1", session_id=uuid.uuid4().hex, session_check="1")
    assert headers["X-ClickHouse-Exception-Code"] == "372"


def test_ddl_and_its_results(client: Client, table: str) -> None:
    client.command(f"ALTER TABLE {table} ADD COLUMN extra Int32 DEFAULT 5")
    assert ("extra", "Int32") in [found[:2] for found in client.query(f"DESCRIBE TABLE {table}").result_rows]
    assert (table,) in client.query("SHOW TABLES").result_rows
    assert client.command(f"EXISTS TABLE {table}") == 1


def test_comments_and_semicolons_around_a_query(client: Client) -> None:
    assert client.command("-- one; two\n/* INSERT */ SELECT 1 -- FORMAT Null\n;") == 1


def test_several_statements_are_rejected(url: str) -> None:
    status, text, headers = post(url, b"SELECT 1; SELECT 2")
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (400, "62")
    assert b"Multi-statements" in text


def test_the_statement_may_come_in_the_url_in_the_body_or_in_both(url: str) -> None:
    assert post(url, b"SELECT 1")[1] == b"1\n"
    assert post(url, b"", query="SELECT 2")[1] == b"2\n"
    assert post(url, b"+ 1", query="SELECT 2")[1] == b"3\n"
    assert post(url, b"SELECT 1 AS x", default_format="JSONEachRow")[1] == b'{"x":1}\n'
    assert post(url, b"SELECT 1 AS x FORMAT JSONEachRow SETTINGS max_threads = 1")[1] == b'{"x":1}\n'


def test_get_requests_only_read(url: str, database: str) -> None:
    assert post(url, None, query="SELECT 1")[1] == b"1\n"
    _, _, headers = post(url, None, query="CREATE TABLE g (x Int8) ENGINE = Memory", database=database)
    assert headers["X-ClickHouse-Exception-Code"] == "164"


def test_external_data_is_a_table_of_one_query(client: Client) -> None:
    data = ExternalData(file_name="ext.csv", fmt="CSV", structure=["name String", "n Int32"], data=b"a,1\nb,2\n")
    assert client.query("SELECT sum(n) FROM ext", external_data=data).first_row == (3,)
    with pytest.raises(DatabaseError):
        client.query("SELECT sum(n) FROM ext")


@pytest.mark.parametrize(
    ("sql", "code", "name"),
    [
        ("SELECT nope", 47, "UNKNOWN_IDENTIFIER"),
        ("SELEC 1 FROM", 62, "SYNTAX_ERROR"),
        ("SELECT * FROM no_such_table", 60, "UNKNOWN_TABLE"),
        ("SELECT * FROM no_such_database.t", 81, "UNKNOWN_DATABASE"),
        ("SELECT no_such_function(1)", 46, "UNKNOWN_FUNCTION"),
    ],
)
def test_errors_carry_code_and_name(client: Client, sql: str, code: int, name: str) -> None:
    with pytest.raises(DatabaseError, match=f"(?s)Code: {code}.*{name}") as failed:
        client.query(sql)
    assert failed.value.code == code


def test_an_unknown_database_is_an_error(url: str) -> None:
    assert post(url, b"SELECT 1", database="no_such")[2]["X-ClickHouse-Exception-Code"] == "81"


def test_a_query_that_fails_midway_is_an_error(client: Client) -> None:
    query = "SELECT throwIf(number = 3000000, 'midway') FROM numbers(5000000) SETTINGS max_block_size = 10000"
    with pytest.raises((StreamFailureError, DatabaseError), match="midway"):
        client.query(query)
    assert client.command("SELECT 1") == 1


def test_a_bad_insert_stores_nothing(client: Client, table: str) -> None:
    with pytest.raises(DatabaseError) as failed:
        client.raw_insert(table, ["i", "s"], b"1\tgood\nbad\trow\n", fmt="TSV")
    assert failed.value.code == 27
    with pytest.raises(DatabaseError) as failed:
        client.insert("no_such_table", [[1]], column_names=["i"], column_type_names=["UInt64"])
    assert failed.value.code == 60
    assert client.command(f"SELECT count() FROM {table}") == 0


def test_a_large_insert_that_is_rejected_at_once_is_an_error(client: Client) -> None:
    with pytest.raises(DatabaseError) as failed:
        client.raw_insert("no_such_table", ["i"], (b"1\n" * 500_000 for _ in range(20)), fmt="TSV")
    assert failed.value.code == 60


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "lz4": lz4.frame.compress,
    "zstd": zstandard.compress,
}
UNPACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "lz4": lz4.frame.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


@pytest.mark.parametrize("encoding", PACKERS)
def test_bodies_may_be_packed(url: str, encoding: str) -> None:
    status, text, _ = post(url, PACKERS[encoding](b"SELECT 'packed'"), headers={"Content-Encoding": encoding})
    assert (status, text) == (200, b"packed\n")


@pytest.mark.parametrize("rows", [3, 300_000])
@pytest.mark.parametrize("encoding", UNPACKERS)
def test_replies_are_packed_where_that_is_asked(url: str, encoding: str, rows: int) -> None:
    sql = b"SELECT number FROM numbers(%d)" % rows
    _, packed, headers = post(url, sql, headers={"Accept-Encoding": encoding}, enable_http_compression="1")
    assert headers["Content-Encoding"] == encoding
    assert UNPACKERS[encoding](packed) == b"".join(b"%d\n" % n for n in range(rows))
    _, plain, headers = post(url, b"SELECT 1", headers={"Accept-Encoding": encoding})
    assert (plain, headers["Content-Encoding"]) == (b"1\n", None)


@pytest.mark.parametrize("compress", ["lz4", "zstd", "gzip", False])
def test_the_client_packs_both_ways(url: str, database: str, table: str, compress: Any) -> None:
    with client_of(url, database=database, compress=compress) as client:
        rows = [row(n) for n in range(20_000)]
        client.insert(table, rows, column_names=NAMES)
        assert client.query(f"SELECT i FROM {table} ORDER BY i").result_rows == [(n,) for n in range(20_000)]


def test_a_repeated_token_inserts_once(client: Client, table: str) -> None:
    for token in ("one", "one", "two"):
        client.insert(table, [row(1)], column_names=NAMES, settings={"insert_deduplication_token": token})
    assert client.command(f"SELECT count() FROM {table}") == 2


_WORKER = """
import sys, clickhouse_connect
host, port, user, password, table, worker = sys.argv[1:]
with clickhouse_connect.get_client(host=host, port=int(port), username=user, password=password) as client:
    for batch in range(5):
        first = (int(worker) * 5 + batch) * 200
        client.insert(table, [(n, "x") for n in range(first, first + 200)], column_names=["i", "s"])
        client.query(f"SELECT count() FROM {table}")
    print(client.command(f"SELECT count() FROM {table} WHERE intDiv(i, 1000) = {worker}"))
"""


def test_several_processes_at_once(url: str, database: str, client: Client, table: str) -> None:
    address = urlsplit(url)
    where = [str(address.hostname), str(address.port), address.username or "default", unquote(address.password or "")]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, *where, f"{database}.{table}", str(worker)], stdout=subprocess.PIPE
        )
        for worker in range(3)
    ]
    assert [worker.communicate(timeout=TIMEOUT_S)[0] for worker in workers] == [b"1000\n"] * 3
    assert client.query(f"SELECT count(), uniqExact(i) FROM {table}").first_row == (3000, 3000)


async def test_the_async_client(url: str, database: str) -> None:
    address = urlsplit(url)
    client = await clickhouse_connect.get_async_client(
        host=address.hostname,
        port=address.port,
        database=database,
        username=unquote(address.username or "default"),
        password=unquote(address.password or ""),
    )
    try:
        replies = await asyncio.gather(*(client.query(f"SELECT {n}") for n in range(50)))
    finally:
        await client.close()
    assert [reply.result_rows[0][0] for reply in replies] == list(range(50))
