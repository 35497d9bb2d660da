"""Write and parse master keys. Pure.

A master key is `ssk1.ID.SECRET.CHECK`: id of 12 hex digits (milliseconds since the epoch), 32 random bytes in URL-safe
base64, and 8 hex digits that a wrong character makes invalid. Commas join several; the first wraps new keys, all
unwrap. `legacy:TEXT` at the end is a secret from a release without ids; `legacy-hex:HEX` is one that is no text.
"""

import binascii
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256

_PREFIX, _LEGACY, _LEGACY_HEX = "ssk1", "legacy:", "legacy-hex:"
_SECRET_BYTES = 32
LEGACY_ID = ""
"""Id of a secret from a release without ids."""


@dataclass(frozen=True, slots=True)
class MasterSecret:
    """One master key."""

    key_id: str
    """Sorts by the time of creation; `LEGACY_ID`: of a release without ids."""
    secret: bytes

    def __repr__(self) -> str:
        """Return the id alone."""
        return f"MasterSecret({self.key_id or 'legacy'})"


def new_master_key() -> str:
    """Return a random master key."""
    key_id, secret = f"{time.time_ns() // 1_000_000:012x}", secrets.token_bytes(_SECRET_BYTES)
    return f"{_PREFIX}.{key_id}.{_encode(secret)}.{_check(key_id, secret)}"


def parse_master_keys(text: str) -> tuple[MasterSecret, ...]:
    """Parse one or several master keys, the first of which wraps new keys.

    Raises:
        ValueError: a key is incomplete or mistyped, or there twice; the message holds no secret.
    """
    text = text.strip()
    before, legacy = _split_legacy(text)
    keys = [_parse(part.strip()) for part in before.split(",") if part.strip()]
    if legacy is not None:
        keys.append(MasterSecret(LEGACY_ID, legacy))
    if len({key.key_id for key in keys}) < len(keys):
        raise ValueError("a master key is there twice: name each once")
    if not keys:
        raise ValueError("there is no master key: create one with `stepstream master-key create`")
    return tuple(keys)


def parse_master_file(content: bytes) -> tuple[MasterSecret, ...]:
    """Parse the content of a file of master keys; other content than text of this format is a legacy secret.

    Raises:
        ValueError: as `parse_master_keys`.
    """
    if content.startswith((b"ssk1.", b"legacy")):
        return parse_master_keys(content.decode("utf-8", "replace"))
    return (MasterSecret(LEGACY_ID, content),)


def join_master_keys(first: str, others: bytes) -> str:
    """Put a master key before the content of a file of master keys."""
    if others.startswith((b"ssk1.", b"legacy")):
        return f"{first},{others.decode().strip()}"
    return f"{first},{_LEGACY_HEX}{others.hex()}"


def _split_legacy(text: str) -> tuple[str, bytes | None]:
    for prefix in (_LEGACY, _LEGACY_HEX):
        if text.startswith(prefix) or f",{prefix}" in text:
            before, _, secret = text.partition(prefix)
            try:
                content = bytes.fromhex(secret) if prefix == _LEGACY_HEX else secret.encode("utf-8", "surrogateescape")
            except ValueError:
                raise ValueError(f"{_LEGACY_HEX} is not followed by hexadecimal digits") from None
            if not content:
                raise ValueError(f"{prefix} is not followed by a secret")
            return before, content
    return text, None


def _parse(text: str) -> MasterSecret:
    wrong = "not a master key: create one with `stepstream master-key create`"
    match text.split("."):
        case [prefix, key_id, encoded, check] if prefix == _PREFIX:
            try:
                secret = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
            except (binascii.Error, ValueError):
                raise ValueError(f"master key {key_id} is mistyped: its secret is not base64") from None
            # The last character has unused bits: other characters would decode to the same secret.
            is_canonical = len(secret) == _SECRET_BYTES and encoded == _encode(secret)
            if not is_canonical or not hmac.compare_digest(check.encode(), _check(key_id, secret).encode()):
                raise ValueError(f"master key {key_id} is mistyped: its check value is not that of its secret")
            return MasterSecret(key_id, secret)
    raise ValueError(f"{wrong}, or write {_LEGACY}SECRET for a secret from a release without ids")


def _encode(secret: bytes) -> str:
    return urlsafe_b64encode(secret).rstrip(b"=").decode()


def _check(key_id: str, secret: bytes) -> str:
    return hmac.new(secret, f"stepstream master key {key_id}".encode(), sha256).hexdigest()[:8]
