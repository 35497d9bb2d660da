"""Sign and check sessions: the value of the cookie, and the token that each action must carry.

A session is a signed statement of the console, so several consoles behind one address share them. It names the digest
of the user's credential: a new password or another role ends the sessions of before. The session of a user of an
OpenID Connect provider carries role and tenant itself, and ends when the provider's settings change.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import asdict, dataclass

import orjson

_SESSION, _CSRF = b"stepstream console session", b"stepstream console action"


@dataclass(frozen=True)
class Session:
    """The content of a cookie."""

    name: str
    credential: str
    """Digest of the user's record, or of the settings of the OpenID Connect provider."""
    ends_at: float
    """Seconds since the Unix epoch."""
    nonce: str
    role: str = ""
    """Of a user of the provider; empty: a local user, whose record has it."""
    tenant: str = ""
    """Of a user of the provider."""


def new_session(name: str, credential: str, ends_at: float, role: str = "", tenant: str = "") -> Session:
    """Return a new session."""
    return Session(name, credential, ends_at, secrets.token_urlsafe(12), role, tenant)


def credential_of(*parts: object) -> str:
    """Return a digest that changes with any of these values."""
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()[:32]


def sign(session: Session, key: bytes) -> str:
    """Return the cookie's value."""
    body = base64.urlsafe_b64encode(orjson.dumps(asdict(session)))
    return f"{body.decode()}.{_mac(key, _SESSION, body)}"


def verify(cookie: str, key: bytes, now: float) -> Session | None:
    """Return the session of a cookie; None: it is forged, damaged or has ended."""
    body, _, mac = cookie.encode("utf-8", "replace").rpartition(b".")
    if not hmac.compare_digest(mac, _mac(key, _SESSION, body).encode()):
        return None
    session = Session(**orjson.loads(base64.urlsafe_b64decode(body)))
    return session if now < session.ends_at else None


def action_token(cookie: str, key: bytes) -> str:
    """Return the token that the actions of a session must carry: another site's page cannot read it."""
    return _mac(key, _CSRF, cookie.encode())


def _mac(key: bytes, purpose: bytes, body: bytes) -> str:
    return hmac.new(key, purpose + b"\0" + body, hashlib.sha256).hexdigest()
