"""Connect to ClickHouse over HTTP, and retry until it is ready."""

import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, OperationalError

from stepstream.config import ClickHouseSettings, Settings, SettingsError, variable
from stepstream.config.secrets import store_credentials
from stepstream.core.oauth import TokenRefused, TokenSource
from stepstream.jobs.clickhouse.http_pool import pool_of

log = logging.getLogger(__name__)
# The client logs each failed call. Its exception says the same.
logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)

_AUTHENTICATION_FAILED = 516
_UNKNOWN_DATABASE = 81
_SETTINGS = {
    # A replay writes many days at once; each day is a partition.
    "max_partitions_per_insert_block": 0,
    # An insert returns after its rows are stored.
    "async_insert": 0,
    # All versions of a row are in one partition: the time in a key never changes.
    "do_not_merge_across_partitions_select_final": 1,
}
"""Settings of the account that writes. A read-only account of a server may change none."""
_CLUSTER_SETTINGS = {"insert_quorum": "auto"}
"""Of a cluster also: an insert returns after most replicas have it, so that offsets are committed after that."""
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0


class StoreUnavailableError(Exception):
    """ClickHouse is unavailable; the message has the address, the reason and the setting to change."""


def connect(settings: Settings, *, database: str = "", timeout_s: float = 300.0, reads_only: bool = False) -> Client:
    """Return a client; each is for one thread at a time.

    Args:
        settings: all settings; address and credentials are in `clickhouse`.
        database: database of its statements; empty: the default of the server.
        timeout_s: seconds allowed for one reply.
        reads_only: use the account that only reads.

    Raises:
        StoreUnavailableError: it does not answer, or rejects the credentials.
        SettingsError: the credentials contradict each other.
    """
    url = settings.clickhouse.url
    address, (user, password) = urlsplit(url), store_credentials(settings, reads_only=reads_only)
    if address.scheme not in {"http", "https"} or not address.hostname:
        raise StoreUnavailableError(
            f"'{url}' is no HTTP address: set {variable('clickhouse', 'url')}, as http://127.0.0.1:8123"
        )
    port = address.port or (8443 if address.scheme == "https" else 8123)
    try:
        return clickhouse_connect.get_client(
            interface=address.scheme,
            host=address.hostname,
            port=port,
            pool_mgr=pool_of(
                address.scheme,
                address.hostname,
                port,
                ca=settings.clickhouse.ca_location,
                certificate=settings.clickhouse.certificate_location,
                key=settings.clickhouse.key_location,
            ),
            database=database or None,
            send_receive_timeout=timeout_s,
            connect_timeout=min(10.0, timeout_s),
            autogenerate_session_id=False,
            settings=None if reads_only else _SETTINGS | (_CLUSTER_SETTINGS if settings.clickhouse.cluster else {}),
            **_security(settings.clickhouse, user, password),
        )
    except ClickHouseError as error:
        if isinstance(error.__cause__, TokenRefused):
            raise StoreUnavailableError(str(error)) from None
        if isinstance(error, DatabaseError) and error.code == _AUTHENTICATION_FAILED:
            prefix = "reader_" if reads_only and settings.clickhouse.reader_user else ""
            names = [variable("clickhouse", prefix + field) for field in ("user", "password")]
            raise StoreUnavailableError(
                f"ClickHouse at {url} rejects user '{user}': set {' and '.join(names)}"
            ) from None
        if isinstance(error, DatabaseError) and error.code == _UNKNOWN_DATABASE:
            raise StoreUnavailableError(
                f"ClickHouse at {url} has no database '{database}': run `stepstream store migrate`"
            ) from None
        raise StoreUnavailableError(
            f"ClickHouse at {url} cannot be reached: start it (`stepstream up`) or set "
            f"{variable('clickhouse', 'url')} ({_reason(error)})"
        ) from None


def _security(clickhouse: ClickHouseSettings, user: str, password: str) -> dict[str, Any]:
    """Return the client's options for TLS and one way to authenticate: it refuses two together.

    Raises:
        SettingsError: both a token and a token server are set, or as of `TokenSource`.
    """
    token = clickhouse.access_token.get_secret_value()
    if clickhouse.oauth_token_url:
        if token:
            raise SettingsError("clickhouse.oauth_token_url and clickhouse.access_token exclude each other: unset one")
        credentials: dict[str, Any] = {"token_provider": _tokens(clickhouse)}
    elif token:
        credentials = {"access_token": token}
    else:
        credentials = {"username": user, "password": password}
    options = {
        **credentials,
        "ca_cert": clickhouse.ca_location,
        "client_cert": clickhouse.certificate_location,
        "client_cert_key": clickhouse.key_location,
        # With a password or token, the certificate only opens the connection.
        "tls_mode": "strict" if clickhouse.certificate_location and (password or "username" not in credentials) else "",
    }
    return {name: value for name, value in options.items() if value}


def _tokens(clickhouse: ClickHouseSettings) -> Callable[[], str]:
    """Return the function that the client calls for its token, and again when the server refuses it.

    Raises:
        SettingsError: as of `TokenSource`.
    """
    source = TokenSource("clickhouse", clickhouse)

    def token() -> str:
        try:
            return source.token()
        except TokenRefused as error:  # callers retry what the client raises
            raise OperationalError(str(error)) from error

    return token


def connect_when_ready(
    settings: Settings,
    *,
    database: str = "",
    stopped: Callable[[], bool] = lambda: False,
) -> Client:
    """Connect, and retry until `clickhouse.deadline_s` has passed or `stopped` returns True.

    Raises:
        StoreUnavailableError: the last failure.
    """
    deadline = time.monotonic() + settings.clickhouse.deadline_s
    wait = _FIRST_WAIT_S
    logged = False
    while True:
        try:
            return connect(settings, database=database)
        except StoreUnavailableError as error:
            left = deadline - time.monotonic()
            if left <= 0 or stopped():
                raise
            if not logged:
                log.warning("%s; retrying for %.0f s", error, left)
                logged = True
            time.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_WAIT_S)


def _reason(error: BaseException) -> str:
    """Return the innermost cause of a failed connection, or the first line of a rejection."""
    cause = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
