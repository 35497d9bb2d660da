"""Load the installation's master key, which derives persons' pseudonyms and wraps the keys of their records."""

import hmac
import uuid
from hashlib import sha256

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from stepstream.config import Settings
from stepstream.config.secrets import read_or_create_secret
from stepstream.topics.codec import CodecError
from stepstream.topics.events import SubjectKey, new_subject_key
from stepstream.topics.ids import new_event_id, now_us


class WrongMasterKey(CodecError):
    """A key was wrapped under another master key: set STEPSTREAM_SEAL_MASTER_KEY to the same value everywhere."""

    kind = "wrong_master_key"


class MasterKey:
    """The master key, from which two keys are derived: one for subjects, one for wrapping."""

    def __init__(self, secret: bytes) -> None:
        self._subjects = hmac.digest(secret, b"stepstream subjects", sha256)
        self._wrapping = hmac.digest(secret, b"stepstream key wrapping", sha256)

    def subject(self, tenant: str, user: str) -> str:
        """Return a person's pseudonym (40 hex digits), which cannot be linked to the person without this key."""
        identity = f"{tenant}\x1f{user}".encode("utf-8", "surrogatepass")
        return hmac.new(self._subjects, identity, sha256).hexdigest()[:40]

    def new_key(self, tenant: str, subject: str, after_us: int = -1) -> SubjectKey:
        """Return a new random key of a person, wrapped. `after_us` is the time of the person's last erasure."""
        return new_subject_key(
            event_id=new_event_id(),
            occurred_at_us=max(now_us(), after_us + 1),  # clocks differ
            key_id=uuid.uuid4().hex,
            tenant=tenant,
            subject=subject,
            wrapped_key=aes_key_wrap(self._wrapping, AESGCM.generate_key(256)),
        )

    def cipher(self, key: SubjectKey) -> AESGCM:
        """Unwrap a key.

        Raises:
            WrongMasterKey: another master key wrapped it.
        """
        try:
            return AESGCM(aes_key_unwrap(self._wrapping, key["wrapped_key"]))
        except InvalidUnwrap:
            raise WrongMasterKey(
                f"key {key['key_id']} was made under another master key: set STEPSTREAM_SEAL_MASTER_KEY to the same "
                "value everywhere"
            ) from None


def load_master_key(settings: Settings, *, create: bool = True) -> MasterKey | None:
    """Return the master key of `seal.master_key`, else the one in `DATA/secrets`.

    Args:
        settings: settings of the installation.
        create: create a random key if there is none; False: return None.
    """
    declared = settings.seal.master_key.get_secret_value()
    if declared:
        return MasterKey(declared.encode())
    file = settings.paths.data / "secrets" / "master.key"
    return MasterKey(read_or_create_secret(file)) if create or file.exists() else None
