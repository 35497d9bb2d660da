"""Parse an HTTP request's URL parameters and headers, and check its credentials. Pure."""

import base64
import re
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepstream.services.store.codecs import choose_encoding
from stepstream.services.store.errors import AUTHENTICATION_FAILED, BAD_ARGUMENTS, INVALID_SESSION_TIMEOUT, StoreError

# Parameters of the transport; as in ClickHouse, every other one is a setting of the query.
_TRANSPORT = frozenset(
    {"query", "database", "default_format", "user", "password", "session_id", "session_check", "session_timeout"}
    | {"query_id", "compress", "decompress", "enable_http_compression", "http_zlib_compression_level", "buffer_size"}
    | {"wait_end_of_query", "client_protocol_version", "send_progress_in_http_headers", "role", "quota_key"}
    | {"http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close", "stacktrace"}
    | {"http_write_exception_in_output_format", "add_http_cors_header", "close_session"}
)
_NAME = re.compile(r"\w+\Z")
_MAX_SESSION_S = 3600.0


@dataclass(frozen=True)
class Account:
    """One user of the store."""

    name: str
    password: str
    reads_only: bool


@dataclass(frozen=True)
class Session:
    """The session of a request."""

    id: str
    timeout_s: float
    must_exist: bool


@dataclass(frozen=True)
class Request:
    """One query's parameters; its statement is in `sql` (from the URL) and the body."""

    query_id: str
    sql: bytes = b""
    database: str | None = None
    format: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    session: Session | None = None
    content_encoding: str = ""
    reply_encoding: str | None = None
    wait_for_end: bool = False  # answer only when the query has ended
    reads_only: bool = False  # of an account that only reads
    is_get: bool = False


def read_request(params: Mapping[str, str], headers: Mapping[str, str]) -> Request:
    """Parse a request; `headers` has lower-case names.

    Raises:
        StoreError: a parameter is invalid or not supported.
    """
    if params.get("compress") == "1" or params.get("decompress") == "1":
        raise StoreError(
            BAD_ARGUMENTS,
            "ClickHouse's own block compression is not supported: use Content-Encoding and Accept-Encoding",
        )
    names = [name for name in params if name not in _TRANSPORT and not name.startswith("param_")]
    invalid = [name for name in names if not _NAME.match(name)]
    if invalid:
        raise StoreError(BAD_ARGUMENTS, f"'{invalid[0]}' is not a valid name of a setting")
    packs = params.get("enable_http_compression") in {"1", "true"}
    return Request(
        query_id=params.get("query_id") or str(uuid.uuid4()),
        sql=params.get("query", "").encode(),
        database=params.get("database") or headers.get("x-clickhouse-database") or None,
        format=headers.get("x-clickhouse-format") or params.get("default_format") or None,
        settings={name: params[name] for name in names},
        parameters={name[6:]: value for name, value in params.items() if name.startswith("param_")},
        session=_session(params),
        content_encoding=headers.get("content-encoding", "").strip().lower(),
        reply_encoding=choose_encoding(headers.get("accept-encoding", "")) if packs else None,
        wait_for_end=params.get("wait_end_of_query") == "1",
    )


def _session(params: Mapping[str, str]) -> Session | None:
    if not params.get("session_id"):
        return None
    try:
        timeout = float(params.get("session_timeout", "60"))
    except ValueError:
        timeout = -1.0
    if not 0 <= timeout <= _MAX_SESSION_S:
        raise StoreError(INVALID_SESSION_TIMEOUT, f"session_timeout must be 0 to {_MAX_SESSION_S:g} seconds")
    return Session(params["session_id"], timeout, params.get("session_check") == "1")


def authenticate(params: Mapping[str, str], headers: Mapping[str, str], accounts: Sequence[Account]) -> Account:
    """Return the account of a request's credentials: basic auth, X-ClickHouse-User and -Key, or the URL's.

    Raises:
        StoreError: no account has them.
    """
    user, password = _credentials(params, headers)
    for account in accounts:
        is_user = secrets.compare_digest(user.encode(), account.name.encode())
        if secrets.compare_digest(password.encode(), account.password.encode()) and is_user:
            return account
    raise StoreError(
        AUTHENTICATION_FAILED,
        f"{user}: Authentication failed: password is incorrect, or there is no user with such name",
    )


def _credentials(params: Mapping[str, str], headers: Mapping[str, str]) -> tuple[str, str]:
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
        except ValueError:  # characters beyond ASCII, no base64, or no UTF-8
            return "", ""
        return user, password
    if "x-clickhouse-user" in headers or "x-clickhouse-key" in headers:
        return _utf8(headers.get("x-clickhouse-user", "default")), _utf8(headers.get("x-clickhouse-key", ""))
    return params.get("user", "default"), params.get("password", "")


def _utf8(header: str) -> str:
    """Return a header's text: HTTP libraries read its bytes as Latin-1, but clients send UTF-8."""
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return header
