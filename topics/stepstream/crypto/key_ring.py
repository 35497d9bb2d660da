"""Seal and open records with keys that each person has on the topic `subject-keys`, wrapped by a master key.

A new person gets a key at the first record. `stepstream erase` destroys keys: it writes the erasure, and a record
without the key in place of each. A key counts as destroyed only by these two records. A key that is merely missing (the
topic lags, was recreated or cut) may come back, so what it sealed waits. This needs one guarantee of every writer:
Kafka acknowledges a key before a record sealed with it is sent.

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
from stepstream.crypto.content_store import ContentStore
from stepstream.crypto.key_service import WrongMasterKey
from stepstream.crypto.master_key import MasterKey, is_destroyed, load_master_key
from stepstream.crypto.sealing import (
    Layout,
    SealBroken,
    key_ids,
    layout_of,
    mark_erased,
    open_sealed,
    persons_of,
    restore,
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


def sealing_codec(
    settings: Settings, *, keep_key: KeepKey | None = None, make_master: bool = True, keep_arrays: bool = False
) -> Codec:
    """Return a codec that seals records with a `user` when it encodes them, and opens them when it decodes them.

    Args:
        settings: settings of the registry, Kafka and the master key.
        keep_key: takes over the key of a new person, for programs that must not block; they call `Codec.move_out`.
            Default: `encode` sends the key to Kafka, and moves the content of large records to the store, and blocks.
        make_master: create a master key if the installation has none; False: records stay unsealed then.
        keep_arrays: as for `Codec`.
    """
    sealer = Sealer(settings, keep_key=keep_key, make_master=make_master)
    return Codec(settings, sealer, keep_arrays=keep_arrays, moves_out=keep_key is None)


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
        self._contents = ContentStore(settings)
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
        """Decrypt the personal fields of a record in place, after reading them from the store, or mark it as erased.

        Args:
            topic: source topic.
            writer: the writer's schema, parsed.
            record: the decoded record.

        Raises:
            KeysUnavailable: a key, or its master key, is missing or cannot be read now; retry.
            ContentUnavailable: the store does not answer; retry.
            MissingContent, Malformed: the record can never be opened.
        """
        claim = record["claim"]
        written = self._layouts.get(id(writer))
        if written is None:
            written = self._layouts[id(writer)] = Layout(writer, TOPICS[topic].personal)
        try:
            if record["seal_key"] is None:
                content, record["claim"] = self._contents.read(record["tenant"], claim), None
                return restore(written, layout_of(topic), record, content)
            if (record["sealed"] is None and claim is None) or record["seal_key"] == _NO_KEY:
                return mark_erased(record)
            ciphers = self._ciphers_of(record["seal_key"])
            if ciphers is None:
                return mark_erased(record)
            if claim is not None:
                record["sealed"], record["claim"] = self._contents.read(record["tenant"], claim), None
            return open_sealed(written, layout_of(topic), topic, record, ciphers)
        except SealBroken as error:
            raise Malformed(str(error)) from None

    def move_out(self, topic: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the record with its personal fields in the store: sealed as they are, or in the clear.

        The persons of a record in the clear stay in it, by which an erasure finds it.

        Raises:
            Oversized: the content is larger than `large_records.max_mb`.
            ContentUnavailable: the store does not answer; retry.
        """
        if record["sealed"] is not None:
            content, rest = record["sealed"], {**record, "sealed": None}
        else:
            layout = layout_of(topic)
            persons = {name: record[name] for name in ("user", "other_users") if name in record}
            content, rest = layout.write(record), {**without_personal_fields(layout, record), **persons}
        return {**rest, "claim": self._contents.write(record["tenant"], content)}

    def _ciphers_of(self, seal_key: str) -> dict[str, AESGCM] | None:
        """Return all ciphers in a `seal_key`; None: one of the keys is destroyed."""
        ring = self._ring or self._open_ring(make_master=False)  # a new master key would open nothing
        if ring is None:
            raise KeysUnavailable(
                "sealed records cannot be read without the master key: set STEPSTREAM_SEAL_MASTER_KEY"
            )
        names = key_ids(seal_key)
        if any(ring.is_destroyed(key_id) for key_id in names):
            return None
        return {key_id: ring.cipher(key_id) for key_id in names}

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
        """Ids of keys that an erasure destroyed."""
        self._withdrawn: set[str] = set()
        """Ids of known keys whose record is gone, or holds no key: nothing new is sealed with them."""
        self._recheck: set[str] = set()
        """Subjects that lost a key since the erasures were last read to their end."""
        self._foreign: str | None = None
        """Id of a key under a master key that is missing here; None: there is none."""
        self._checked_masters: set[str] = set()
        """Ids of master keys that open the keys under them."""
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

    def is_destroyed(self, key_id: str) -> bool:
        """Return True if an erasure destroyed the key. Reads the topics to their end for a key that is not open.

        Raises:
            KeysUnavailable: the topics cannot be read now.
        """
        self._check_tables()
        if key_id in self._ciphers:
            return False
        if key_id in self._destroyed:
            return True
        key = self._keys.get(key_id)
        if key is None:
            self._wait(self._keys)
            key = self._keys.get(key_id)
        if key is None:
            return False
        if not self._is_superseded(key) and (is_destroyed(key) or not self._erasures.current):
            self._wait(self._erasures)
        if not self._is_superseded(key):
            return False
        self._destroyed.add(key_id)
        return True

    def cipher(self, key_id: str) -> AESGCM:
        """Return the cipher of a key that is not destroyed.

        Raises:
            KeysUnavailable: the key or its master key is missing.
        """
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            key = self._keys.get(key_id)
            if key is None or is_destroyed(key):
                state = "missing" if key is None else "empty without an erasure of its person"
                raise KeysUnavailable(
                    f"key {key_id} of a sealed record is {state} on {SUBJECT_KEYS}: restore the topic; if the key is "
                    "lost for ever, declare that with `stepstream erase --missing-keys`"
                )
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
        if self._may_block:
            self._check_tables()
        if self._may_block and not (self._keys.current and self._erasures.current):
            self._wait(self._keys)
            self._wait(self._erasures)
        if subject in self._recheck:
            if self._may_block:
                self._wait(self._erasures)
            self._recheck.discard(subject)
        with self._lock:
            known = {
                name: key
                for name, key in self._keys_of[subject].items()
                if name not in self._withdrawn and not self._is_superseded(key)
            }
            if self._foreign is not None:
                raise WrongMasterKey(
                    f"key {self._foreign} on {SUBJECT_KEYS} belongs to a master key that is missing here, so no new "
                    "record is sealed: set STEPSTREAM_SEAL_MASTER_KEY to the same value everywhere"
                )
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
            if key is not None and not is_destroyed(key):
                self._check_master(key)
                self._withdrawn.discard(key_id)
                self._add(key)
                return
            # Destroyed, or missing: seal nothing more with it. Without an erasure, an open key keeps opening records.
            if key is not None:
                self._add(key)
            subject = self._subject_of.get(key_id)
            if subject is None:
                return
            self._withdrawn.add(key_id)
            self._recheck.add(subject)
            self._persons = {person: entry for person, entry in self._persons.items() if entry[1] != key_id}
            self._on_erasure(subject, None)

    def _check_master(self, key: SubjectKey) -> None:
        """Note a key of another master key; an older master key of this installation is none."""
        master_key_id = key["master_key_id"]
        if master_key_id in self._checked_masters:
            return
        if self._master.opens(key):
            self._checked_masters.add(master_key_id)
            if self._foreign == key["key_id"]:
                self._foreign = None
        else:
            self._foreign = key["key_id"]

    def _on_erasure(self, subject: str, _erasure: Any) -> None:
        with self._lock:
            for key_id, key in self._keys_of[subject].items():
                if self._is_superseded(key):
                    self._destroyed.add(key_id)
                    self._ciphers.pop(key_id, None)
                    self._persons = {person: entry for person, entry in self._persons.items() if entry[1] != key_id}

    def _is_superseded(self, key: SubjectKey) -> bool:
        return key["occurred_at_us"] <= self.erased_at(key["subject"])

    def _check_tables(self) -> None:
        """Raise if a key or an erasure on the log may be unknown here."""
        for table in (self._keys, self._erasures):
            if table.fault is not None:
                raise KeysUnavailable(f"sealed records wait, because an erasure may be missing: {table.fault}")

    def _wait(self, table: Table) -> None:
        if not table.wait_current(KAFKA_TIMEOUT_S):
            raise KeysUnavailable(
                f"the keys of sealed records were not read within {KAFKA_TIMEOUT_S:g} s: is Kafka reachable?"
            )

    def _send_key(self, key: SubjectKey) -> bool:
        if self._producer is None:
            self._codec = Codec(self._settings)
            self._producer = EventProducer(self._settings.kafka, self._codec, "seal", linger_ms=0)
        try:
            self._producer.send(SUBJECT_KEYS, key["key_id"], key)
            self._producer.flush(KAFKA_TIMEOUT_S)
        except (DeliveryFailed, BufferError, RegistryUnavailable) as error:
            raise KeysUnavailable(f"a new key could not be sent to Kafka: {error}") from error
        return True
