"""Make, open, wrap again and destroy the keys of persons, as records of the topic `subject-keys`."""

import uuid

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stepstream.config import Settings
from stepstream.config.master_keys import LEGACY_ID
from stepstream.crypto.key_service import KeyService, WrongMasterKey, load_key_service
from stepstream.topics.events import SubjectKey, new_subject_key
from stepstream.topics.ids import new_event_id, now_us


class MasterKey:
    """The records of keys, by a key service."""

    def __init__(self, service: KeyService) -> None:
        self._service = service

    def subject(self, tenant: str, user: str) -> str:
        """Return a person's pseudonym (40 hex digits), which cannot be linked to the person without a master key."""
        return self._service.subject(tenant, user)

    def new_key(self, tenant: str, subject: str, after_us: int = -1) -> SubjectKey:
        """Return a new random key of a person, wrapped. `after_us` is the time of the person's last erasure."""
        return new_subject_key(
            event_id=new_event_id(),
            occurred_at_us=max(now_us(), after_us + 1),  # clocks differ
            key_id=uuid.uuid4().hex,
            tenant=tenant,
            subject=subject,
            wrapped_key=self._service.wrap(tenant, AESGCM.generate_key(256)),
            master_key_id=self._service.primary_id,
        )

    def cipher(self, key: SubjectKey) -> AESGCM:
        """Unwrap a key that is not destroyed.

        Raises:
            WrongMasterKey: the key service lacks its master key.
        """
        return AESGCM(self._service.unwrap(key["tenant"], key["master_key_id"], key["wrapped_key"]))

    def opens(self, key: SubjectKey) -> bool:
        """Return True if the key service has the key's master key."""
        if key["master_key_id"] != LEGACY_ID:
            return self._service.knows(key["master_key_id"])
        try:
            self.cipher(key)
        except WrongMasterKey:
            return False
        return True

    def wrapped_again(self, key: SubjectKey) -> SubjectKey | None:
        """Return the key under the primary master key; None: it is already, or destroyed.

        Raises:
            WrongMasterKey: the key service lacks its master key.
        """
        if is_destroyed(key) or key["master_key_id"] == self._service.primary_id != LEGACY_ID:
            return None
        plain = self._service.unwrap(key["tenant"], key["master_key_id"], key["wrapped_key"])
        return {
            **key,
            "event_id": new_event_id(),
            "wrapped_key": self._service.wrap(key["tenant"], plain),
            "master_key_id": self._service.primary_id,
        }


def is_destroyed(key: SubjectKey) -> bool:
    """Return True if the record says that the key was destroyed. It counts with the erasure of its subject alone."""
    return not key["wrapped_key"]


def destroyed(key: SubjectKey) -> SubjectKey:
    """Return the record that destroys a key."""
    return {**key, "event_id": new_event_id(), "wrapped_key": b""}


def load_master_key(settings: Settings, *, create: bool = True) -> MasterKey | None:
    """Return the installation's keys; arguments, None and errors as `load_key_service`."""
    service = load_key_service(settings, create=create)
    return None if service is None else MasterKey(service)
