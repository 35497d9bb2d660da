"""Build sealers without Kafka; their keys are in a dict, and a test can destroy them."""

from collections.abc import Callable
from typing import Any

from stepstream.config import SealSettings, Settings
from stepstream.crypto.key_ring import Sealer
from stepstream.crypto.master_key import destroyed
from stepstream.topics.catalogue import ERASURES, SUBJECT_KEYS
from stepstream.topics.events import SubjectKey, new_erasure

MASTER = Settings(seal=SealSettings.model_validate({"master_key": "legacy:a secret of the tests"}))


class FakeTable:
    """A `Table` over a dict. Tests set `current` and `reachable`."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.current = True
        self.reachable = True
        self.fault: str | None = None
        self.waits = 0
        self.arriving: dict[str, Any] = {}
        """Records of the topic that are not read yet."""
        self._callbacks: list[Callable[[str, Any], None]] = []

    def get(self, key: str) -> Any:
        return self.rows.get(key)

    def items(self) -> dict[str, Any]:
        return dict(self.rows)

    def on_change(self, callback: Callable[[str, Any], None]) -> None:
        self._callbacks.append(callback)

    def wait_current(self, timeout_s: float) -> bool:
        self.waits += 1
        if self.reachable:
            arriving, self.arriving = self.arriving, {}
            for key, record in arriving.items():
                self.put(key, record)
        return self.reachable

    def put(self, key: str, record: Any) -> None:
        if record is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = record
        for callback in self._callbacks:
            callback(key, record)

    def close(self) -> None:
        pass


class Keys:
    """The topics of keys and erasures, shared by several sealers."""

    def __init__(self) -> None:
        self.tables = {SUBJECT_KEYS: FakeTable(), ERASURES: FakeTable()}
        self.made: list[SubjectKey] = []
        self.keeps = True

    def sealer(self, settings: Settings = MASTER) -> Sealer:
        return Sealer(settings, keep_key=self._keep, tables=lambda _, topic: self.tables[topic])

    def destroy(self, subject: str | None = None) -> None:
        """Erase one person, or all, as of the newest key, and destroy their keys."""
        for key_id, key in self.tables[SUBJECT_KEYS].items().items():
            if subject in (None, key["subject"]):
                self._put_erasure(key["subject"], key["occurred_at_us"])
                self.tables[SUBJECT_KEYS].put(key_id, destroyed(key))

    def lose(self) -> None:
        """Lose all keys, as a topic does that was recreated."""
        for key_id in self.tables[SUBJECT_KEYS].items():
            self.tables[SUBJECT_KEYS].put(key_id, None)

    def erase(self, subject: str, at_us: int) -> None:
        """Write the erasure and destroy the keys, as `stepstream erase` does."""
        self._put_erasure(subject, at_us)
        for key_id, key in self.tables[SUBJECT_KEYS].items().items():
            if key["subject"] == subject:
                self.tables[SUBJECT_KEYS].put(key_id, destroyed(key))

    def _put_erasure(self, subject: str, at_us: int) -> None:
        earlier = self.tables[ERASURES].get(subject)
        at_us = max(at_us, earlier["occurred_at_us"] if earlier else 0)
        event = new_erasure(event_id="e", occurred_at_us=at_us, tenant="default", subject=subject)
        self.tables[ERASURES].put(subject, event)

    def _keep(self, key: SubjectKey) -> bool:
        self.made.append(key)
        if self.keeps:
            self.tables[SUBJECT_KEYS].put(key["key_id"], key)
        return self.keeps
