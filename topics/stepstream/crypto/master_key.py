"""The installation's master key: it names persons without telling who they are, and wraps the keys of their records."""

import hmac
import uuid
from hashlib import sha256

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from stepstream.config import Settings
from stepstream.config.secrets import kept
from stepstream.topics.codec import CodecError
from stepstream.topics.events import SubjectKey, new_subject_key
from stepstream.topics.ids import new_event_id, now_us


class WrongMasterKey(CodecError):
    """A key that another installation's master key has wrapped."""

    kind = "wrong_master_key"


class Master:
    """What is derived from the installation's master key."""

    def __init__(self, secret: bytes) -> None:
        self._subjects = hmac.digest(secret, b"stepstream subjects", sha256)
        self._wrapping = hmac.digest(secret, b"stepstream key wrapping", sha256)

    def subject(self, tenant: str, user: str) -> str:
        """The name of a person that tells nothing to those without the master key."""
        named = f"{tenant}\x1f{user}".encode("utf-8", "surrogatepass")
        return hmac.new(self._subjects, named, sha256).hexdigest()[:40]

    def new_key(self, tenant: str, subject: str, after_us: int = -1) -> SubjectKey:
        """A fresh random key for a person, wrapped; `after_us` is the time of the person's last erasure."""
        return new_subject_key(
            event_id=new_event_id(),
            occurred_at_us=max(now_us(), after_us + 1),  # clocks differ
            key_id=uuid.uuid4().hex,
            tenant=tenant,
            subject=subject,
            wrapped_key=aes_key_wrap(self._wrapping, AESGCM.generate_key(256)),
        )

    def cipher(self, key: SubjectKey) -> AESGCM:
        """The unwrapped key, ready to use.

        Raises:
            WrongMasterKey: it was wrapped under another master key.
        """
        try:
            return AESGCM(aes_key_unwrap(self._wrapping, key["wrapped_key"]))
        except InvalidUnwrap:
            raise WrongMasterKey(
                f"key {key['key_id']} was made under another master key: set STEPSTREAM_SEAL_MASTER_KEY to the same "
                "value everywhere"
            ) from None


def master_of(settings: Settings, *, make: bool = True) -> Master | None:
    """The installation's master key: `seal.master_key`, or the one kept in DATA/secrets.

    Args:
        settings: where to look.
        make: whether one is made where there is none; without, the answer may be None.
    """
    declared = settings.seal.master_key.get_secret_value()
    if declared:
        return Master(declared.encode())
    file = settings.paths.data / "secrets" / "master.key"
    return Master(kept(file)) if make or file.exists() else None
