"""Test the parsing of a request's parameters and its credentials."""

import base64

import pytest

from stepstream.services.store.errors import StoreError
from stepstream.services.store.request import Account, Session, authenticate, read_request


def test_parameters_settings_and_transport_are_separated() -> None:
    request = read_request(
        {
            "query": "SELECT 1",
            "database": "d",
            "param_x": "41",
            "max_threads": "2",
            "query_id": "q",
            "session_id": "s",
            "session_timeout": "5",
            "wait_end_of_query": "1",
            "client_protocol_version": "54405",
        },
        {},
    )
    assert (request.sql, request.database, request.query_id, request.wait_for_end) == (b"SELECT 1", "d", "q", True)
    assert (request.parameters, request.settings) == ({"x": "41"}, {"max_threads": "2"})
    assert request.session == Session("s", 5.0, must_exist=False)


def test_headers_name_format_database_and_encodings() -> None:
    headers = {
        "x-clickhouse-format": "JSON",
        "x-clickhouse-database": "d",
        "content-encoding": "GZIP",
        "accept-encoding": "zstd",
    }
    request = read_request({"enable_http_compression": "1"}, headers)
    assert (request.format, request.database) == ("JSON", "d")
    assert (request.content_encoding, request.reply_encoding) == ("gzip", "zstd")
    assert read_request({}, headers).reply_encoding is None


def test_a_wrong_session_timeout_is_the_clients_error() -> None:
    with pytest.raises(StoreError) as failed:
        read_request({"session_id": "s", "session_timeout": "-1"}, {})
    assert failed.value.status == 400


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"compress": "1"}, "Content-Encoding"),
        ({"a b": "1"}, "'a b'"),
        ({"x;y": "1"}, "'x;y'"),
        ({"session_id": "s", "session_timeout": "soon"}, "session_timeout"),
        ({"session_id": "s", "session_timeout": "7200"}, "session_timeout"),
        ({"session_id": "s", "session_timeout": "nan"}, "session_timeout"),
    ],
)
def test_the_error_names_an_invalid_parameter(params: dict[str, str], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        read_request(params, {})


ACCOUNTS = (Account("reader", "other", reads_only=True), Account("ada", "s:é", reads_only=False))


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("params", "headers"),
    [
        ({}, basic("ada:s:é")),
        ({}, {"x-clickhouse-user": "ada", "x-clickhouse-key": "s:é".encode().decode("latin-1")}),
        ({"user": "ada", "password": "s:é"}, {}),
    ],
)
def test_credentials_come_in_three_ways(params: dict[str, str], headers: dict[str, str]) -> None:
    assert authenticate(params, headers, ACCOUNTS) is ACCOUNTS[1]


@pytest.mark.parametrize(
    ("params", "headers"),
    [
        ({}, {}),
        ({}, basic("ada:wrong")),
        ({}, basic("eve:s:é")),
        ({}, {"authorization": "Basic !!"}),
        ({}, {"authorization": "Basic \xff"}),
        ({}, {"x-clickhouse-user": "ada"}),
        ({"user": "ada", "password": ""}, {}),
    ],
)
def test_wrong_credentials_are_rejected(params: dict[str, str], headers: dict[str, str]) -> None:
    with pytest.raises(StoreError) as refused:
        authenticate(params, headers, ACCOUNTS)
    assert (refused.value.code, refused.value.status) == (516, 403)
