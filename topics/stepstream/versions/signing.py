"""Sign versions with Ed25519, and check that a trusted learner signed one.

The signature covers the identity of the version and the digest of each file, so files need no signatures of their own.
"""

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from stepstream.topics.events import Checkpoint, CheckpointSignature, new_checkpoint_signature
from stepstream.versions.layout import VersionRejected, name_of, role_of

_COVERED = ("model", "version", "parent_version", "format", "base_version")


class BadKey(Exception):
    """A key is not an Ed25519 key in the expected form; the message names it."""


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
    return base64.b64encode(_raw(key.public_key())).decode()


def sign(checkpoint: Checkpoint, key: Ed25519PrivateKey) -> CheckpointSignature:
    """Return the signature of a version by a key."""
    signature = base64.b64encode(key.sign(signed_bytes(checkpoint))).decode()
    return new_checkpoint_signature(key_id=_key_id(_raw(key.public_key())), signature=signature)


def check_signature(checkpoint: Checkpoint, trusted_keys: Sequence[str]) -> None:
    """Check that one of the keys (base64) signed the version; no keys: nothing is checked.

    Raises:
        VersionRejected: none of them did.
        BadKey: a trusted key is not an Ed25519 public key.
    """
    if not trusted_keys:
        return
    keys = {_key_id(raw): Ed25519PublicKey.from_public_bytes(raw) for raw in map(_parse, trusted_keys)}
    content = signed_bytes(checkpoint)
    for signature in checkpoint["signatures"]:
        key = keys.get(signature["key_id"])
        if key is None:
            continue
        try:
            key.verify(base64.b64decode(signature["signature"], validate=True), content)
        except (InvalidSignature, ValueError):
            raise VersionRejected(
                f"{name_of(checkpoint)}: its signature by key {signature['key_id']} is wrong"
            ) from None
        return
    signers = ", ".join(signature["key_id"] for signature in checkpoint["signatures"]) or "nobody"
    raise VersionRejected(f"{name_of(checkpoint)}: no trusted key signed it, but {signers}; trusted: {', '.join(keys)}")


def signed_bytes(checkpoint: Checkpoint) -> bytes:
    """Return what a signature covers, as canonical JSON: the version's identity and the files that workers load.

    The training state is not covered: retention removes it before the rest.
    """
    files = sorted(
        (file["path"], file["role"], file["sha256"]) for file in checkpoint["files"] if role_of(file) != "training"
    )
    covered = {name: checkpoint[name] for name in _COVERED}  # type: ignore[literal-required]  # names of the record
    return json.dumps(covered | {"files": files}, sort_keys=True, separators=(",", ":")).encode()


def _parse(key: str) -> bytes:
    try:
        raw = base64.b64decode(key, validate=True)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise BadKey(f"'{key}' is not an Ed25519 public key in base64: take it from `stepstream models keygen`")
    return raw


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _key_id(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]
