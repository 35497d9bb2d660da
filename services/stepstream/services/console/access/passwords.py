"""Make and check digests of passwords with Argon2id, in the parameters that RFC 9106 recommends second."""

import os
from functools import cache
from threading import BoundedSemaphore

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

SHORTEST = 12
"""Characters of the shortest password."""
LONGEST = 1024
_MEMORY_KIB, _ITERATIONS, _LANES, _SALT_BYTES, _DIGEST_BYTES = 65_536, 3, 4, 16, 32
# Each check takes 64 MiB.
_at_once = BoundedSemaphore(2)


def digest_of(password: str) -> str:
    """Return the digest of a password in the PHC string format. Blocks for about 0.1 s."""
    derivation = Argon2id(
        salt=os.urandom(_SALT_BYTES),
        length=_DIGEST_BYTES,
        iterations=_ITERATIONS,
        lanes=_LANES,
        memory_cost=_MEMORY_KIB,
    )
    with _at_once:
        return derivation.derive_phc_encoded(password.encode())


def is_password(password: str, digest: str | None) -> bool:
    """Return True if a password has the digest; for None, return False after the same time. Blocks for about 0.1 s."""
    if len(password) > LONGEST:
        return False
    known = digest or _nobodys()
    with _at_once:
        try:
            Argon2id.verify_phc_encoded(password.encode(), known)
        except InvalidKey:
            return False
    return digest is not None


@cache
def _nobodys() -> str:
    return digest_of(os.urandom(_SALT_BYTES).hex())
