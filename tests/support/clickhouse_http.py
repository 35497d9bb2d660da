"""Give a table and a client of the store, or of the ClickHouse server of STEPSTREAM_TEST_CLICKHOUSE_URL."""

import datetime
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from waiting import TIMEOUT_S

from stepstream.config import Settings
from stepstream.config.secrets import store_credentials

COLUMNS = (
    "i UInt64, s String, a Array(String), t DateTime64(6, 'UTC'), m Map(String, Float64), l LowCardinality(String), "
    "n Nullable(Float64), d Decimal(18, 4), u UUID, b Bool"
)
NAMES = ["i", "s", "a", "t", "m", "l", "n", "d", "u", "b"]
T0 = datetime.datetime(2026, 1, 1, 12, 30, 0, 123456)  # the client reads UTC as naive


def row(n: int) -> list[Any]:
    return [
        n,
        f"é{n}\t\\'\n",
        ["a", "b'"],
        T0,
        {"k": n / 2},
        "low",
        None if n % 2 else 1.5,
        Decimal(n),
        uuid.UUID(int=n),
        n % 2 == 0,
    ]


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> str:
    external = os.environ.get("STEPSTREAM_TEST_CLICKHOUSE_URL")
    return external or url_of(request.getfixturevalue("store_settings"))


def url_of(settings: Settings, *, reads_only: bool = False) -> str:
    """Return the store's address with an account's credentials."""
    user, password = store_credentials(settings, reads_only=reads_only)
    return f"http://{quote(user)}:{quote(password, safe='')}@127.0.0.1:{settings.store.port}"


def client_of(url: str, **options: Any) -> Client:
    address = urlsplit(url)
    return clickhouse_connect.get_client(
        host=address.hostname,
        port=address.port,
        username=unquote(address.username or "default"),
        password=unquote(address.password or ""),
        **options,
    )


@pytest.fixture(scope="module")
def database(url: str) -> Iterator[str]:
    name = f"contract_{uuid.uuid4().hex[:8]}"
    with client_of(url) as client:
        client.command(f"CREATE DATABASE {name} ENGINE = Atomic")
        yield name
        client.command(f"DROP DATABASE {name}")


@pytest.fixture
def client(url: str, database: str) -> Iterator[Client]:
    with client_of(url, database=database) as client:
        yield client


@pytest.fixture
def table(client: Client) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    client.command(
        f"CREATE TABLE {name} ({COLUMNS}) ENGINE = MergeTree ORDER BY i "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    yield name
    client.command(f"DROP TABLE {name}")


def post(url: str, sql: bytes | None = b"", *, headers: Any = None, **params: str) -> tuple[int, bytes, Any]:
    """Send a plain HTTP request; return status, body and headers."""
    address = urlsplit(url)
    query = "&".join(f"{name}={quote(value)}" for name, value in params.items())
    request = urllib.request.Request(
        f"http://{address.hostname}:{address.port}/?{query}", data=sql, headers=headers or {}
    )
    request.add_header("X-ClickHouse-User", unquote(address.username or "default"))
    request.add_header("X-ClickHouse-Key", unquote(address.password or ""))
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.read(), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


# --- liveness
