"""Create Ed25519 keys, sign bytes with them, and check signatures."""

import base64
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)


class BadKey(Exception):
    """A key is not an Ed25519 key in the expected form; the message names it."""


class Signature(NamedTuple):
    """Signature by one key."""

    key_id: str
    """First 16 hex digits of the SHA-256 of the public key."""
    signature: str
    """Signature, base64."""


class PublicKey:
    """Public key that checks signatures."""

    def __init__(self, text: str) -> None:
        """Parse a key in base64.

        Raises:
            BadKey: it is not an Ed25519 public key.
        """
        try:
            raw = base64.b64decode(text, validate=True)
        except ValueError:
            raw = b""
        if len(raw) != 32:
            raise BadKey(f"'{text}' is not an Ed25519 public key in base64: take it from `stepstream models keygen`")
        self.key_id = _key_id(raw)
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    def signed(self, signature: str, content: bytes) -> bool:
        """Return True if a signature in base64 is this key's over the content."""
        try:
            self._key.verify(base64.b64decode(signature, validate=True), content)
        except (InvalidSignature, ValueError):
            return False
        return True


def create_key(file: Path) -> str:
    """Write a new private key, readable by this user only, and return its public key.

    Raises:
        FileExistsError: the file exists.
    """
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with open(file, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        out.write(pem)
    return public_key(key)


def load_key(file: Path) -> Ed25519PrivateKey:
    """Return the private key in a file.

    Raises:
        BadKey: the file cannot be read or has no such key.
    """
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise BadKey(f"{file} has no private key ({error}): create one with `stepstream models keygen`") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey(f"{file} has a key of another kind: create one with `stepstream models keygen`")
    return key


def public_key(key: Ed25519PrivateKey) -> str:
    """Return the public key of a private key, base64."""
    return base64.b64encode(_raw(key)).decode()


def sign_bytes(content: bytes, key: Ed25519PrivateKey) -> Signature:
    """Return the signature of the content by a key."""
    return Signature(_key_id(_raw(key)), base64.b64encode(key.sign(content)).decode())


def _raw(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _key_id(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]
