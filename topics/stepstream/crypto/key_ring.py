"""Seal and open records with keys that each person has on the topic `subject-keys`, wrapped by the master key.

A new person gets a key at the first record. `stepstream erase` destroys keys by deleting their records. A reader that
does not know a key first reads the topic to its current end: only a key that is still missing is destroyed. This needs
one guarantee of every writer: Kafka acknowledges a key before a record sealed with it is sent.

A record that names several persons is sealed under a key of each. It can be opened only while all keys exist.

An erasure covers everything that happened before it: every key from before counts as destroyed, even if it reaches the
topic later. Records that a process still holds, or that arrive late, are emptied instead of sealed under a new key.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stepstream.config import Settings
from stepstream.crypto.master_key import MasterKey, load_master_key
from stepstream.crypto.sealing import (
    Layout,
    SealBroken,
    key_ids,
    layout_of,
    mark_erased,
    open_sealed,
    persons_of,
    seal,
    without_personal_fields,
)
from stepstream.topics.catalogue import ERASURES, SUBJECT_KEYS, TOPICS
from stepstream.topics.codec import Codec, KeysUnavailable, Malformed, RegistryUnavailable
from stepstream.topics.events import SubjectKey
from stepstream.topics.producer import DeliveryFailed, EventProducer
from stepstream.topics.table import Table

log = logging.getLogger(__name__)

KAFKA_TIMEOUT_S = 10.0
_MAX_CACHED = 100_000
"""Persons, and ciphers, in memory; a full cache is emptied."""
_NO_KEY = "erased"
"""`seal_key` of a record that was emptied because its person had been erased before it was sealed."""

KeepKey = Callable[[SubjectKey], bool]
"""Takes over a new key without blocking. True: Kafka will acknowledge it before any record that is encoded later."""


def sealing_codec(settings: Settings, *, keep_key: KeepKey | None = None, make_master: bool = True) -> Codec:
    """Return a codec that seals records with a `user` when it encodes them, and opens them when it decodes them.

    Args:
        settings: settings of the registry, Kafka and the master key.
        keep_key: takes over the key of a new person, for programs that must not block. Default: `encode` sends the key
            to Kafka and blocks.
        make_master: create a master key if the installation has none; False: records stay unsealed then.
    """
    return Codec(settings.schema_registry, Sealer(settings, keep_key=keep_key, make_master=make_master))


class Sealer:
    """Seals and opens records for one codec. Thread-safe; it reads no topic before the first record with a user."""

    def __init__(
        self, settings: Settings, *, keep_key: KeepKey | None = None, make_master: bool = True, tables: Any = Table
    ) -> None:
        """Store the arguments; nothing starts yet.

        Args:
            settings: settings of Kafka and the master key.
            keep_key: takes over new keys without blocking; default: they are sent to Kafka, which blocks.
            make_master: create a master key if there is none; False: records stay unsealed then.
            tables: creates a followed table; tests pass a fake.
        """
        self._settings, self._keep_key, self._make_master, self._tables = settings, keep_key, make_master, tables
        self._lock = threading.Lock()
        self._ring: _KeyRing | None = None
        self._layouts: dict[int, Layout] = {}

    def seal(self, topic: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a record that names persons, sealed; emptied if one of them was erased after the event.

        Raises:
            KeysUnavailable: the keys cannot be read or stored now; retry.
        """
        ring = self._ring or self._open_ring(self._make_master)
        if ring is None:
            return record
        layout = layout_of(topic)
        occurred_us = record.get("started_at_us", record["occurred_at_us"])
        ciphers: dict[str, AESGCM] = {}
        for user in persons_of(record):
            subject, key_id, cipher = ring.key_of(record["tenant"], user)
            if occurred_us <= ring.erased_at(subject):
                return mark_erased({**without_personal_fields(layout, record), "seal_key": _NO_KEY})
            ciphers[key_id] = cipher
        return seal(layout, topic, record, ciphers)

    def open(self, topic: str, writer: Any, record: dict[str, Any]) -> dict[str, Any]:
        """Decrypt the personal fields of a sealed record in place, or mark it as erased.

        Args:
            topic: source topic.
            writer: the writer's schema, parsed.
            record: the decoded record.

        Raises:
            KeysUnavailable: the keys cannot be read now; retry.
            Malformed, WrongMasterKey: the record can never be opened.
        """
        if record["sealed"] is None or record["seal_key"] == _NO_KEY:
            return mark_erased(record)
        ring = self._ring or self._open_ring(make_master=False)  # a new master key would open nothing
        if ring is None:
            raise KeysUnavailable(
                "sealed records cannot be read without the master key: set STEPSTREAM_SEAL_MASTER_KEY"
            )
        ciphers: dict[str, AESGCM] = {}
        for key_id in key_ids(record["seal_key"]):
            cipher = ring.cipher(key_id)
            if cipher is None:
                return mark_erased(record)
            ciphers[key_id] = cipher
        written = self._layouts.get(id(writer))
        if written is None:
            written = self._layouts[id(writer)] = Layout(writer, TOPICS[topic].personal)
        try:
            return open_sealed(written, layout_of(topic), topic, record, ciphers)
        except SealBroken as error:
            raise Malformed(str(error)) from None

    def close(self) -> None:
        """Stop following the topics of keys and erasures."""
        if self._ring is not None:
            self._ring.close()

    def _open_ring(self, make_master: bool) -> "_KeyRing | None":
        with self._lock:
            if self._ring is None:
                master = load_master_key(self._settings, create=make_master)
                if master is not None:
                    self._ring = _KeyRing(self._settings, master, self._keep_key, self._tables)
            return self._ring


class _KeyRing:
    """The keys of persons that this process knows, and the erasures."""

    def __init__(self, settings: Settings, master: MasterKey, keep_key: KeepKey | None, tables: Any) -> None:
        self._settings, self._master = settings, master
        self._keep_key = keep_key or self._send_key
        self._may_block = keep_key is None
        self._lock = threading.RLock()
        self._persons: dict[tuple[str, str], tuple[str, str, AESGCM]] = {}
        self._ciphers: dict[str, AESGCM] = {}
        self._keys_of: defaultdict[str, dict[str, SubjectKey]] = defaultdict(dict)
        self._subject_of: dict[str, str] = {}
        self._destroyed: set[str] = set()
        self._recheck: set[str] = set()
        """Subjects with a key destroyed since the erasures were last read to their end."""
        self._producer: EventProducer | None = None
        self._codec: Codec | None = None
        self._keys: Table = tables(settings, SUBJECT_KEYS)
        self._erasures: Table = tables(settings, ERASURES)
        self._keys.on_change(self._on_key)
        self._erasures.on_change(self._on_erasure)
        for key_id, key in self._keys.items().items():  # read before the callback was set
            self._on_key(key_id, key)

    def key_of(self, tenant: str, user: str) -> tuple[str, str, AESGCM]:
        """Return a person's subject, key id and cipher; create the key of a new person."""
        return self._persons.get((tenant, user)) or self._find_or_create(tenant, user)

    def erased_at(self, subject: str) -> int:
        """Return the time up to which a person's events are erased, in microseconds since the epoch; -1: not erased."""
        erasure = self._erasures.get(subject)
        return -1 if erasure is None else int(erasure["occurred_at_us"])

    def cipher(self, key_id: str) -> AESGCM | None:
        """Return the cipher of a key; None: the key is destroyed."""
        cipher = self._ciphers.get(key_id)
        if cipher is None and key_id not in self._destroyed:
            key = self._keys.get(key_id)
            if key is None:
                self._wait(self._keys)
                key = self._keys.get(key_id)
            if key is None:
                self._destroyed.add(key_id)
                return None
            if self._is_superseded(key):
                return None
            cipher = self._unwrap(key)
        return cipher

    def close(self) -> None:
        self._keys.close()
        self._erasures.close()
        if self._codec is not None:
            self._codec.close()

    def _find_or_create(self, tenant: str, user: str) -> tuple[str, str, AESGCM]:
        subject = self._master.subject(tenant, user)
        # Not under the lock, which the tables' threads need.
        if self._may_block and not (self._keys.current and self._erasures.current):
            self._wait(self._keys)
            self._wait(self._erasures)
        if subject in self._recheck:
            if self._may_block:
                self._wait(self._erasures)
            self._recheck.discard(subject)
        with self._lock:
            known = {name: key for name, key in self._keys_of[subject].items() if not self._is_superseded(key)}
            if known:
                key = known[min(known)]
            else:
                key = self._master.new_key(tenant, subject, self.erased_at(subject))
                if not self._keep_key(key):
                    raise KeysUnavailable("a new key could not be stored, so nothing may be sealed with it; retry")
                self._add(key)
            person = subject, key["key_id"], self._unwrap(key)
            if len(self._persons) >= _MAX_CACHED:
                self._persons.clear()
            self._persons[tenant, user] = person
            return person

    def _add(self, key: SubjectKey) -> None:
        self._keys_of[key["subject"]][key["key_id"]] = key
        self._subject_of[key["key_id"]] = key["subject"]

    def _unwrap(self, key: SubjectKey) -> AESGCM:
        cipher = self._ciphers.get(key["key_id"])
        if cipher is None:
            if len(self._ciphers) >= _MAX_CACHED:
                self._ciphers.clear()
            cipher = self._ciphers[key["key_id"]] = self._master.cipher(key)
        return cipher

    def _on_key(self, key_id: str, key: SubjectKey | None) -> None:
        with self._lock:
            if key is not None:
                self._destroyed.discard(key_id)
                self._add(key)
                return
            self._destroyed.add(key_id)
            subject = self._subject_of.pop(key_id, None)
            if subject is not None:
                self._recheck.add(subject)
                self._keys_of[subject].pop(key_id, None)
            self._forget(key_id)

    def _on_erasure(self, subject: str, _erasure: Any) -> None:
        with self._lock:
            for key_id, key in self._keys_of[subject].items():
                if self._is_superseded(key):
                    self._forget(key_id)

    def _is_superseded(self, key: SubjectKey) -> bool:
        return key["occurred_at_us"] <= self.erased_at(key["subject"])

    def _forget(self, key_id: str) -> None:
        self._ciphers.pop(key_id, None)
        self._persons = {person: entry for person, entry in self._persons.items() if entry[1] != key_id}

    def _wait(self, table: Table) -> None:
        if not table.wait_current(KAFKA_TIMEOUT_S):
            raise KeysUnavailable(
                f"the keys of sealed records were not read within {KAFKA_TIMEOUT_S:g} s: is Kafka reachable?"
            )

    def _send_key(self, key: SubjectKey) -> bool:
        if self._producer is None:
            self._codec = Codec(self._settings.schema_registry)
            self._producer = EventProducer(self._settings.kafka, self._codec, "seal", linger_ms=0)
        try:
            self._producer.send(SUBJECT_KEYS, key["key_id"], key)
            self._producer.flush(KAFKA_TIMEOUT_S)
        except (DeliveryFailed, BufferError, RegistryUnavailable) as error:
            raise KeysUnavailable(f"a new key could not be sent to Kafka: {error}") from error
        return True
