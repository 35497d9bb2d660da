"""What a call shows of who makes it: one of our API keys, a session key, or a key that is its upstream's. Pure.

A key may stand in `x-stepstream-key`, `authorization: Bearer …` or `x-api-key`. For frameworks that can set nothing but
a base address and a key, a session may follow any key after a colon.

Who may call: API keys as the topic `api-keys` has them, known also while Kafka is away.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest

from stepstream.config import Settings
from stepstream.services.gateway.errors import Forbidden, KeysUnknown, Unauthorized
from stepstream.topics.events import ApiKey
from stepstream.topics.table import Table
from stepstream.topics.trusted_sources import SCOPE as VERDICTS

PREFIX = b"sk-stepstream-"
SCOPES = ("calls", "feedback", "otlp", VERDICTS)
_HEADERS = frozenset({b"authorization", b"x-api-key", b"x-stepstream-key"})
_ASK = "send `authorization: Bearer sk-stepstream-…` or x-stepstream-key; `stepstream keys create` makes keys"


@dataclass(slots=True)
class Credentials:
    """The credentials of one call."""

    key_id: str = ""
    secret: str = field(default="", repr=False)
    session: str = ""
    upstream: list[tuple[bytes, bytes]] = field(default_factory=list, repr=False)
    """The credential headers that are the upstream's: without the session, never with one of our keys."""


def credentials_of(headers: Iterable[tuple[bytes, bytes]]) -> Credentials:
    """The credentials in a call's headers (names in lower case)."""
    found = Credentials()
    for name, value in headers:
        if name in _HEADERS:
            _take(found, name, value)
    return found


def allow(shown: Credentials, record: ApiKey | None, scope: str) -> str:
    """The tenant of a key of ours that may do what `scope` names.

    Raises:
        Unauthorized: no such key, a wrong secret, or one that was revoked; which of them is not told.
        Forbidden: a right key without this scope.
    """
    digest = sha256(shown.secret.encode()).hexdigest()
    if (
        not compare_digest(digest, record["digest"] if record is not None else "")
        or record is None
        or record["revoked"]
    ):
        raise Unauthorized("this API key is not known here or was revoked: " + _ASK)
    if scope not in record["scopes"]:
        may = ", ".join(record["scopes"]) or "nothing"
        raise Forbidden(f"API key {record['key_id']} may not be used for {scope}, but for: {may}")
    return record["tenant"]


def missing_key() -> Unauthorized:
    """The answer to a call without a key where one is required."""
    return Unauthorized("this gateway requires an API key: " + _ASK)


def new_key() -> tuple[str, str, str]:
    """A new key: its id, the whole key, and the digest of its secret."""
    key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return key_id, f"{PREFIX.decode()}{key_id}-{secret}", sha256(secret.encode()).hexdigest()


def _take(found: Credentials, name: bytes, value: bytes) -> None:
    scheme, space, key = value.partition(b" ") if name == b"authorization" else (b"", b"", value)
    if name == b"authorization" and scheme.lower() != b"bearer":
        found.upstream.append((name, value))
        return
    key, _, session = key.strip().partition(b":")
    if session and not found.session:
        found.session = session.decode("latin-1")
    if key.startswith(PREFIX):
        found.key_id, _, found.secret = key[len(PREFIX) :].decode("latin-1").partition("-")
    elif name != b"x-stepstream-key":
        found.upstream.append((name, scheme + space + key))


TOPIC = "api-keys"


class Keys:
    """Follows the keys in a thread of its own. Close it."""

    def __init__(self, settings: Settings) -> None:
        self._required = settings.gateway.require_key
        self._table = Table(settings, TOPIC, snapshot=settings.paths.data / "gateway" / "api-keys.json")

    def tenant(self, shown: Credentials, scope: str) -> str | None:
        """The tenant of the key that a call shows; None: it shows none of ours, and needs none.

        Raises:
            Unauthorized: a key is required, or this one is not valid.
            Forbidden: the key may not be used for this.
            KeysUnknown: the keys have not been read yet, and this one is not in the last snapshot.
        """
        if not shown.key_id:
            if self._required:
                raise missing_key()
            return None
        record = self._table.get(shown.key_id)
        if record is None and not self._table.current:
            raise KeysUnknown("API keys are not known yet, since Kafka has not been reached: try again")
        return allow(shown, record, scope)

    def has(self, shown: Credentials, scope: str) -> bool:
        """Whether a call that `tenant` has let in shows a key with a scope; without a key it has none."""
        record = self._table.get(shown.key_id) if shown.key_id else None
        return record is not None and scope in record["scopes"]

    def close(self) -> None:
        """Stops following."""
        self._table.close()
