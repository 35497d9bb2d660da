"""Wrap the keys of persons under master keys. `KeyService` is the interface; an external key service implements it too.

`LocalKeyService` has the master keys in memory, from a setting (environment) or a file. Each tenant has a wrapping key
of its own, so a key record that is moved to another tenant does not unwrap.
"""

import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from stepstream.config import Settings
from stepstream.config.master_keys import LEGACY_ID, MasterSecret, new_master_key, parse_master_file, parse_master_keys
from stepstream.config.secrets import read_or_create_secret
from stepstream.topics.codec import KeysUnavailable


class WrongMasterKey(KeysUnavailable):
    """A key is wrapped under a master key that this process lacks. Records under that key wait."""


class KeyService(Protocol):
    """Holds master keys, and wraps keys under them. Thread-safe; calls may block."""

    @property
    def primary_id(self) -> str:
        """Id of the master key that `wrap` uses."""
        ...

    def knows(self, master_key_id: str) -> bool:
        """Return True if it has this master key."""
        ...

    def subject(self, tenant: str, user: str) -> str:
        """Return a person's pseudonym (40 hex digits), the same under all master keys of the installation."""
        ...

    def wrap(self, tenant: str, key: bytes) -> bytes:
        """Wrap a key under the tenant's wrapping key of the primary master key."""
        ...

    def unwrap(self, tenant: str, master_key_id: str, wrapped: bytes) -> bytes:
        """Unwrap a key.

        Raises:
            WrongMasterKey: it lacks that master key, or another one or another tenant's wrapped the key.
        """
        ...


class LocalKeyService:
    """Master keys in memory. The oldest one derives the pseudonyms, so keep it after a rotation."""

    def __init__(self, secrets: Sequence[MasterSecret]) -> None:
        """`secrets`: the primary first."""
        self._secrets = {each.key_id: each.secret for each in secrets}
        self.primary_id = secrets[0].key_id
        oldest = min(secrets, key=lambda each: each.key_id)  # a legacy id is empty, and sorts before all others
        self._subjects = hmac.digest(oldest.secret, b"stepstream subjects", sha256)

    def knows(self, master_key_id: str) -> bool:
        """As `KeyService.knows`."""
        return master_key_id in self._secrets

    def subject(self, tenant: str, user: str) -> str:
        """As `KeyService.subject`."""
        identity = f"{tenant}\x1f{user}".encode("utf-8", "surrogatepass")
        return hmac.new(self._subjects, identity, sha256).hexdigest()[:40]

    def wrap(self, tenant: str, key: bytes) -> bytes:
        """As `KeyService.wrap`."""
        return aes_key_wrap(self._wrapping_key(self.primary_id, tenant), key)

    def unwrap(self, tenant: str, master_key_id: str, wrapped: bytes) -> bytes:
        """As `KeyService.unwrap`."""
        if master_key_id not in self._secrets:
            raise WrongMasterKey(
                f"a key is wrapped under master key {master_key_id or 'without an id'}, which is missing here: add it "
                "to STEPSTREAM_SEAL_MASTER_KEY"
            )
        try:
            return aes_key_unwrap(self._wrapping_key(master_key_id, tenant), wrapped)
        except InvalidUnwrap:
            raise WrongMasterKey(
                f"a key does not unwrap under master key {master_key_id or 'without an id'}: set "
                "STEPSTREAM_SEAL_MASTER_KEY to the same value everywhere"
            ) from None

    def _wrapping_key(self, master_key_id: str, tenant: str) -> bytes:
        secret = self._secrets[master_key_id]
        if master_key_id == LEGACY_ID:  # of a release without wrapping keys of tenants
            return hmac.digest(secret, b"stepstream key wrapping", sha256)
        return hmac.digest(secret, b"stepstream key wrapping\x1f" + tenant.encode("utf-8", "surrogatepass"), sha256)


def load_key_service(settings: Settings, *, create: bool = True) -> KeyService | None:
    """Return the key service of `seal.master_key`, else that of the file in `DATA/secrets`.

    Args:
        settings: settings of the installation.
        create: create a file with a random master key if there is none; False: return None.

    Raises:
        WrongMasterKey: the file is damaged.
    """
    declared = settings.seal.master_key.get_secret_value()
    if declared:
        return LocalKeyService(parse_master_keys(declared))
    file = settings.paths.data / "secrets" / "master.key"
    if not create and not file.exists():
        return None
    try:
        return LocalKeyService(parse_master_file(read_or_create_secret(file, lambda: new_master_key().encode())))
    except ValueError as error:
        raise WrongMasterKey(f"{file}: {error}") from None
