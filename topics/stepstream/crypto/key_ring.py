"""The keys of sealed records: one or more for each person, wrapped on a topic, made when a person is first met.

A key is destroyed by deleting its record from the topic. So a reader that does not know the key of a record first
reads the topic to its end as of now: only a key that is then still missing is destroyed. This rests on one promise of
every writer: a key is acknowledged by Kafka before a record that is sealed with it is sent.

A record that names several persons is sealed under a key of each, and readable only while all of them are there.

An erasure is about all that happened before it: every key that was made until then counts as destroyed, also one that
reaches the topic later. What a process still held in memory, or what arrives late, must not be sealed under a new key:
it is emptied instead.

TODO
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stepstream.config import Settings
from stepstream.crypto.master_key import Master, master_of
from stepstream.crypto.sealing import (
    Layout,
    SealBroken,
    emptied,
    erase,
    key_ids,
    layout_of,
    open_sealed,
    persons_of,
    seal,
)
from stepstream.topics.codec import Codec, KeysUnavailable, Malformed, RegistryUnavailable
from stepstream.topics.events import SubjectKey
from stepstream.topics.producer import DeliveryFailed, EventProducer
from stepstream.topics.table import Table

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

KEYS, ERASURES = "subject-keys", "erasures"
PATIENCE_S = 10.0
_CACHED = 100_000
_NOBODY = "erased"
"""`seal_key` of what is emptied because a person in it was erased before it could be sealed."""

KeepKey = Callable[[SubjectKey], bool]
"""Takes a new key on: True if Kafka is sure to have acknowledged it before any record that is encoded afterwards."""


class Sealer:
    """Seals and opens records for one codec. Safe to share between threads; idle until it is first needed."""

    def __init__(
        self, settings: Settings, *, keep_key: KeepKey | None = None, make_master: bool = True, tables: Any = Table
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: where the log and the master key are.
            keep_key: takes on new keys without blocking; default: they are sent to Kafka and waited for.
            make_master: whether an installation without a master key gets one; without, records stay unsealed.
            tables: makes a followed table; another one in tests.
        """
        self._settings, self._keep_key, self._make_master, self._tables = settings, keep_key, make_master, tables
        self._lock = threading.Lock()
        self._ring: _Ring | None = None
        self._layouts: dict[int, Layout] = {}

    def seal(self, topic: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """A record that names somebody, sealed; emptied where one of its persons was erased after it had happened.

        Raises:
            KeysUnavailable: the keys cannot be had now; try again.
        """
        ring = self._ring or self._open_ring(self._make_master)
        if ring is None:
            return record
        layout = layout_of(topic)
        happened = record.get("started_at_us", record["occurred_at_us"])
        ciphers: dict[str, AESGCM] = {}
        for user in persons_of(record):
            subject, key_id, cipher = ring.of(record["tenant"], user)
            if happened <= ring.erased_at(subject):
                return erase({**emptied(layout, record), "seal_key": _NOBODY})
            ciphers[key_id] = cipher
        return seal(layout, topic, record, ciphers)

    def open(self, topic: str, writer: Any, record: dict[str, Any]) -> dict[str, Any]:
        """A sealed record with its personal fields, or marked as erased, in place.

        Args:
            topic: where it was read.
            writer: the schema that it was written with, parsed.
            record: as it was decoded.

        Raises:
            KeysUnavailable: whether a key of it is destroyed cannot be told now; try again.
            Malformed, WrongMasterKey: it can never be opened.
        """
        if record["sealed"] is None or record["seal_key"] == _NOBODY:
            return erase(record)
        ring = self._ring or self._open_ring(make_master=False)  # a new one would open nothing
        if ring is None:
            raise KeysUnavailable(
                "sealed records cannot be read without the master key: set STEPSTREAM_SEAL_MASTER_KEY"
            )
        ciphers: dict[str, AESGCM] = {}
        for key_id in key_ids(record["seal_key"]):
            cipher = ring.cipher(key_id)
            if cipher is None:
                return erase(record)
            ciphers[key_id] = cipher
        written = self._layouts.get(id(writer))
        if written is None:
            written = self._layouts[id(writer)] = Layout(writer)
        try:
            return open_sealed(written, layout_of(topic), topic, record, ciphers)
        except SealBroken as error:
            raise Malformed(str(error)) from None

    def close(self) -> None:
        """Stops following the keys."""
        if self._ring is not None:
            self._ring.close()

    def _open_ring(self, make_master: bool) -> "_Ring | None":
        with self._lock:
            if self._ring is None:
                master = master_of(self._settings, make=make_master)
                if master is not None:
                    self._ring = _Ring(self._settings, master, self._keep_key, self._tables)
            return self._ring


class _Ring:
    """The keys that this process knows."""

    def __init__(self, settings: Settings, master: Master, keep_key: KeepKey | None, tables: Any) -> None:
        self._settings, self._master = settings, master
        self._keep_key = keep_key or self._send
        self._patient = keep_key is None
        self._lock = threading.RLock()
        self._persons: dict[tuple[str, str], tuple[str, str, AESGCM]] = {}
        self._ciphers: dict[str, AESGCM] = {}
        self._of_subject: defaultdict[str, dict[str, SubjectKey]] = defaultdict(dict)
        self._subject_of: dict[str, str] = {}
        self._destroyed: set[str] = set()
        self._bereft: set[str] = set()
        """Persons of whom a key was destroyed since we last read the erasures to their end."""
        self._producer: EventProducer | None = None
        self._codec: Codec | None = None
        self._keys: Table = tables(settings, KEYS)
        self._erasures: Table = tables(settings, ERASURES)
        self._keys.on_change(self._changed)
        self._erasures.on_change(self._erased)
        for key_id, key in self._keys.items().items():  # read before we listened
            self._changed(key_id, key)

    def of(self, tenant: str, user: str) -> tuple[str, str, AESGCM]:
        """A person's name, key id and cipher; the key is made at first sight."""
        return self._persons.get((tenant, user)) or self._find(tenant, user)

    def erased_at(self, subject: str) -> int:
        """Up to when, in microseconds since the epoch, what happened with a person is erased; -1: not at all."""
        erasure = self._erasures.get(subject)
        return -1 if erasure is None else int(erasure["occurred_at_us"])

    def cipher(self, key_id: str) -> AESGCM | None:
        """The cipher of a key; None: the key is destroyed."""
        found = self._ciphers.get(key_id)
        if found is None and key_id not in self._destroyed:
            key = self._keys.get(key_id)
            if key is None:
                self._wait(self._keys)
                key = self._keys.get(key_id)
            if key is None:
                self._destroyed.add(key_id)
                return None
            if self._is_superseded(key):
                return None
            found = self._remember(key)
        return found

    def close(self) -> None:
        self._keys.close()
        self._erasures.close()
        if self._codec is not None:
            self._codec.close()

    def _find(self, tenant: str, user: str) -> tuple[str, str, AESGCM]:
        subject = self._master.subject(tenant, user)
        # Never under the lock, which the tables' threads need to go on.
        if self._patient and not (self._keys.current and self._erasures.current):
            self._wait(self._keys)
            self._wait(self._erasures)
        if subject in self._bereft:
            if self._patient:
                self._wait(self._erasures)
            self._bereft.discard(subject)
        with self._lock:
            known = {name: key for name, key in self._of_subject[subject].items() if not self._is_superseded(key)}
            if known:
                key = known[min(known)]
            else:
                key = self._master.new_key(tenant, subject, self.erased_at(subject))
                if not self._keep_key(key):
                    raise KeysUnavailable("a new key could not be kept: nothing may be sealed with it")
                self._note(key)
            person = subject, key["key_id"], self._remember(key)
            if len(self._persons) >= _CACHED:
                self._persons.clear()
            self._persons[tenant, user] = person
            return person

    def _note(self, key: SubjectKey) -> None:
        self._of_subject[key["subject"]][key["key_id"]] = key
        self._subject_of[key["key_id"]] = key["subject"]

    def _remember(self, key: SubjectKey) -> AESGCM:
        found = self._ciphers.get(key["key_id"])
        if found is None:
            if len(self._ciphers) >= _CACHED:
                self._ciphers.clear()
            found = self._ciphers[key["key_id"]] = self._master.cipher(key)
        return found

    def _changed(self, key_id: str, key: SubjectKey | None) -> None:
        with self._lock:
            if key is not None:
                self._destroyed.discard(key_id)
                self._note(key)
                return
            self._destroyed.add(key_id)
            subject = self._subject_of.pop(key_id, None)
            if subject is not None:
                self._bereft.add(subject)
                self._of_subject[subject].pop(key_id, None)
            self._forget(key_id)

    def _erased(self, subject: str, _erasure: Any) -> None:
        with self._lock:
            for key_id, key in self._of_subject[subject].items():
                if self._is_superseded(key):
                    self._forget(key_id)

    def _is_superseded(self, key: SubjectKey) -> bool:
        return key["occurred_at_us"] <= self.erased_at(key["subject"])

    def _forget(self, key_id: str) -> None:
        self._ciphers.pop(key_id, None)
        self._persons = {who: entry for who, entry in self._persons.items() if entry[1] != key_id}

    def _wait(self, table: Table) -> None:
        if not table.wait_current(PATIENCE_S):
            raise KeysUnavailable(f"the keys of sealed records were not read within {PATIENCE_S:g} s: is Kafka away?")

    def _send(self, key: SubjectKey) -> bool:
        if self._producer is None:
            self._codec = Codec(self._settings.schema_registry)
            self._producer = EventProducer(self._settings.kafka, self._codec, "seal", linger_ms=0)
        try:
            self._producer.send(KEYS, key["key_id"], key)
            self._producer.flush(PATIENCE_S)
        except (DeliveryFailed, BufferError, RegistryUnavailable) as error:
            raise KeysUnavailable(f"a new key could not be sent to Kafka: {error}") from error
        return True


def codec_of(settings: Settings, *, keep_key: "KeepKey | None" = None, make_master: bool = True) -> "Codec":
    """A codec that seals what it encodes and opens what it decodes, where records have a `user`.

    Args:
        settings: where the registry, the keys and the master key are.
        keep_key: for programs that must not block: takes on the key of a person who is met for the first time, and
            sees to it that Kafka has acknowledged it before it sends a record that is encoded after. Default: `encode`
            sends the key itself and waits.
        make_master: whether an installation without a master key gets one; without one, records stay unsealed.
    """

    return Codec(settings.schema_registry, Sealer(settings, keep_key=keep_key, make_master=make_master))
