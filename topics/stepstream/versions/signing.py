"""Sign versions with Ed25519, and check that a trusted learner signed one.

The signature covers the identity of the version and the digest of each file, so files need no signatures of their own.
"""

import json
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stepstream.crypto.signatures import PublicKey, sign_bytes
from stepstream.topics.events import Checkpoint, CheckpointSignature, new_checkpoint_signature
from stepstream.versions.layout import VersionRejected, name_of, role_of

_COVERED = ("model", "version", "parent_version", "format", "base_version")


def sign(checkpoint: Checkpoint, key: Ed25519PrivateKey) -> CheckpointSignature:
    """Return the signature of a version by a key."""
    return new_checkpoint_signature(**sign_bytes(signed_bytes(checkpoint), key)._asdict())


def check_signature(checkpoint: Checkpoint, trusted_keys: Sequence[str]) -> None:
    """Check that one of the keys (base64) signed the version; no keys: nothing is checked.

    Raises:
        VersionRejected: none of them did.
        BadKey: a trusted key is not an Ed25519 public key.
    """
    if not trusted_keys:
        return
    keys = {key.key_id: key for key in map(PublicKey, trusted_keys)}
    content = signed_bytes(checkpoint)
    for signature in checkpoint["signatures"]:
        key = keys.get(signature["key_id"])
        if key is None:
            continue
        if not key.signed(signature["signature"], content):
            raise VersionRejected(f"{name_of(checkpoint)}: its signature by key {signature['key_id']} is wrong")
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
