"""Sign answers of people to decisions, and check the signatures: rights on the topic `approvals` prove no name.

The signature covers all fields but `refused`, which the controller may write later.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stepstream.config import ControlSettings, SettingsError
from stepstream.crypto.signatures import BadKey, PublicKey, load_key, sign_bytes
from stepstream.services.control.decide.policy import ROLES
from stepstream.topics.events import Approval, new_approval_signature

_COVERED = ("event_id", "occurred_at_us", "tenant", "decision_id", "verdict", "author", "role", "comment")


def signing_key(control: ControlSettings) -> Ed25519PrivateKey | None:
    """Return the key that signs answers; None: they are not signed.

    Raises:
        SettingsError: `control.signing_key` names no such key.
    """
    try:
        return load_key(Path(control.signing_key)) if control.signing_key else None
    except BadKey as error:
        raise SettingsError(f"control.signing_key: {error}") from None


def signed(answer: Approval, key: Ed25519PrivateKey | None) -> Approval:
    """Return an answer with its signature; None: without."""
    if key is None:
        return answer
    return {**answer, "signature": new_approval_signature(**sign_bytes(_signed_bytes(answer), key)._asdict())}


class _Trusted(NamedTuple):
    """Trusted key, and for whom it signs."""

    key: PublicKey
    person: str
    """Empty: everyone."""
    role: str
    """Highest role of the person."""


class TrustedKeys:
    """Keys whose signatures make an answer count; without any, each answer does."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Take the entries of `control.trusted_keys`.

        Raises:
            SettingsError: two of them have the same key.
        """
        self._keys: dict[str, _Trusted] = {}
        for entry in entries:
            *bound, text = entry.rsplit(":", 2)
            key = PublicKey(text)
            if key.key_id in self._keys:
                raise SettingsError(
                    f"control.trusted_keys: key {key.key_id} is listed twice: create one for each person"
                )
            self._keys[key.key_id] = _Trusted(key, *(bound or ("", "")))

    def fault(self, answer: Approval) -> str:
        """Return why an answer does not count by its signature; empty: it counts."""
        if not self._keys:
            return ""
        signature = answer["signature"]
        if signature is None:
            return "it is not signed: set control.signing_key"
        key_id = signature["key_id"]
        trusted = self._keys.get(key_id)
        if trusted is None:
            return f"its key {key_id} is not in control.trusted_keys"
        if not trusted.key.signed(signature["signature"], _signed_bytes(answer)):
            return f"its signature by key {key_id} is wrong"
        if trusted.person and not _is_within(trusted, answer):
            return f"its key {key_id} signs for {trusted.person} as {trusted.role} only"
        return ""

    def checked(self, answers: Iterable[Approval]) -> list[Approval]:
        """Return the answers, with `refused` where the signature is at fault."""
        return [one if one["refused"] else {**one, "refused": self.fault(one)} for one in answers]

    def chosen(self, before: Approval | None, after: Approval) -> Approval:
        """Return which of two records with the same id is the answer: a forged copy does not replace a signed one."""
        return after if before is None or self.fault(before) or not self.fault(after) else before


def _is_within(trusted: _Trusted, answer: Approval) -> bool:
    """Return True if the answer is the person's, with a role that the key may claim."""
    role = answer["role"]
    return answer["author"] == trusted.person and role in ROLES[: ROLES.index(trusted.role) + 1]


def _signed_bytes(answer: Approval) -> bytes:
    """Return what a signature covers, as canonical JSON. `record` keeps it apart from other signed records."""
    covered = {name: answer[name] for name in _COVERED}  # type: ignore[literal-required]  # names of the record
    return json.dumps(covered | {"record": "Approval"}, sort_keys=True, separators=(",", ":")).encode()
