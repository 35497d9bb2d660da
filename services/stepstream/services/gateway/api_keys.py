"""Read the credentials of a call, and check API keys against the topic `api-keys`. Pure: `app` passes the table.

A key comes in `x-stepstream-key`, `authorization: Bearer …` or `x-api-key`. It is either an API key of Stepstream,
which begins with `PREFIX`, or a key of the upstream, which is passed on unchanged: it may contain a colon. Frameworks
that can set nothing but a base address and a key append a session after a colon, to an API key or to `ANY_KEY`.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Protocol

from stepstream.services.gateway.errors import Forbidden, KeysUnknown, Unauthorized
from stepstream.services.gateway.grant import ANYTHING, Grant
from stepstream.services.gateway.key_usage import KeyCounts
from stepstream.topics.events import ApiKey
from stepstream.topics.ids import now_us
from stepstream.topics.trusted_sources import VERDICTS_SCOPE

PREFIX = b"sk-stepstream-"
ANY_KEY = b"any-key"
"""Placeholder of a key, for libraries that demand one."""
CALLS = "calls"
SCOPES = (CALLS, "feedback", "otlp", VERDICTS_SCOPE)
_HEADERS = frozenset({b"authorization", b"x-api-key", b"x-stepstream-key"})
_REMEDY = "send `authorization: Bearer sk-stepstream-…` or x-stepstream-key; `stepstream keys create` makes keys"


@dataclass(slots=True)
class Credentials:
    """The credentials of one call."""

    key_id: str = ""
    """Id of the API key; empty: the call has none."""
    secret: str = field(default="", repr=False)
    session: str = ""
    upstream: list[tuple[bytes, bytes]] = field(default_factory=list, repr=False)
    """Credential headers for the upstream: without the session, and never an API key of Stepstream."""


class KeyTable(Protocol):
    """The records of `api-keys` by key id; `stepstream.topics.table.Table` follows the topic."""

    @property
    def current(self) -> bool:
        """False: only the last snapshot is known, since Kafka has not been reached."""
        ...

    def get(self, key: str) -> Any:
        """Return the record of a key id, or None."""
        ...


class ApiKeys:
    """Decides whether a call's API key permits it."""

    def __init__(self, table: KeyTable, counts: KeyCounts, *, required: bool) -> None:
        """`required`: calls without an API key are refused."""
        self._table = table
        self._counts = counts
        self._required = required

    def authorize(self, credentials: Credentials, scope: str) -> Grant:
        """Return what the request may do, and count it for its API key.

        Raises:
            Unauthorized: a key is required, or this one is not valid or has ended.
            Forbidden: the key lacks the scope.
            RateExceeded: the key's requests of the last minute have reached its rate.
            BudgetSpent: the key's budget is spent; only for the scope `calls`.
            KeysUnknown: the topic has not been read yet, and the last snapshot lacks this key.
        """
        if not credentials.key_id:
            if self._required:
                raise Unauthorized("this gateway requires an API key: " + _REMEDY)
            return ANYTHING
        record = self._table.get(credentials.key_id)
        if record is None and not self._table.current:
            raise KeysUnknown("API keys are not known yet, since Kafka has not been reached: try again")
        grant = check_key(credentials, record, scope)
        grant.check_end(now_us())
        self._counts.admit(record, spends=scope == CALLS)
        return grant

    def check_model(self, grant: Grant, model: str) -> None:
        """Check that a request's key permits the model, and can pay for it.

        Raises:
            Forbidden: it does not declare the model, or has a budget of cost and the model has no price.
        """
        grant.check_model(model)
        self._counts.check_price(grant.key, model)

    def has_scope(self, credentials: Credentials, scope: str) -> bool:
        """Return True if the key of an authorized call also has another scope; False without a key."""
        record = self._table.get(credentials.key_id) if credentials.key_id else None
        return record is not None and scope in record["scopes"]


def check_key(credentials: Credentials, record: ApiKey | None, scope: str) -> Grant:
    """Return what a valid API key that has a scope permits.

    Raises:
        Unauthorized: the key is unknown, has another secret, or was revoked; the message does not say which.
        Forbidden: the key is valid, but lacks the scope.
    """
    digest = sha256(credentials.secret.encode()).hexdigest()
    if (
        not compare_digest(digest, record["digest"] if record is not None else "")
        or record is None
        or record["revoked"]
    ):
        raise Unauthorized("this API key is unknown or was revoked: " + _REMEDY)
    if scope not in record["scopes"]:
        allowed = ", ".join(record["scopes"]) or "nothing"
        raise Forbidden(f"API key {record['key_id']} lacks the scope {scope}; it has: {allowed}")
    return Grant(record)


def credentials_of(headers: Iterable[tuple[bytes, bytes]]) -> Credentials:
    """Return the credentials in a call's headers, whose names are in lower case."""
    credentials = Credentials()
    for name, value in headers:
        if name in _HEADERS:
            _add_header(credentials, name, value)
    return credentials


def _add_header(credentials: Credentials, name: bytes, value: bytes) -> None:
    scheme, _, key = value.partition(b" ") if name == b"authorization" else (b"", b"", value)
    if name == b"authorization" and scheme.lower() != b"bearer":
        credentials.upstream.append((name, value))
        return
    key, _, session = key.strip().partition(b":")
    is_own = key.startswith(PREFIX)
    if not is_own and key != ANY_KEY:
        if name != b"x-stepstream-key":
            credentials.upstream.append((name, value))
        return
    if session and not credentials.session:
        credentials.session = session.decode("latin-1")
    if is_own:
        credentials.key_id, _, credentials.secret = key[len(PREFIX) :].decode("latin-1").partition("-")


def new_key() -> tuple[str, str, str]:
    """Make a key: return its id, the key itself, and the digest of its secret."""
    key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return key_id, f"{PREFIX.decode()}{key_id}-{secret}", sha256(secret.encode()).hexdigest()
