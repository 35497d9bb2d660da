"""Reads a stretch of history, governs it anew and publishes what is new: `stepstream replay`.

Governs history anew, as the `govern` job would govern it now: the same fold over the same records.

What comes out has the ids that the job would give under the tenant's present policy, so that what it governed under
that version already is recognised and left out, and a second replay gives nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, cast

from stepstream.config import Settings
from stepstream.config.secrets import pseudonym_key
from stepstream.crypto.key_ring import codec_of
from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold, PolicySource
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.outputs import Outputs, Publisher
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.retry import retry_while
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.events import Governance
from stepstream.topics.table import Table

INTO: dict[str, str] = {
    "steps": "governed-steps",
    "feedback": "governed-feedback",
    "governed-steps": "governed-steps",
    "governed-feedback": "governed-feedback",
}
"""What may be read, and where its results go."""
_RAW = {"governed-steps": "steps", "governed-feedback": "feedback"}
_DEDUP_DAYS = 36_500
_MAX_FUTURE_S = 1e9
"""What was governed once was not from the future."""


@dataclass
class Tally:
    """What became of the records that were read."""

    read: int = 0
    governed: int = 0
    """Given anew."""
    known: int = 0
    """Governed under this version before."""
    withheld: int = 0
    """Without consent now, or of somebody who was erased."""
    refused: int = 0
    """Never were governed: they are among the dead letters."""
    superseded: int = 0
    """Older results for a source, or copies of a record."""
    trainable: int = 0
    """Of those given anew, the ones that may be trained on."""
    rules: Counter[str] = field(default_factory=Counter)
    """Redactions in those given anew."""


@dataclass
class Known:
    """What is on the governed topic: which results are there, and which of each source is the newest."""

    results: set[str] = field(default_factory=set)
    newest: dict[str, tuple[int, str]] = field(default_factory=dict)
    persons: dict[str, str] = field(default_factory=dict)
    """Whom feedback is about, by its source, as `govern` found by its trajectory where it names nobody itself."""

    def note(self, event: Any) -> None:
        """Takes in a governed event."""
        self.results.add(event["event_id"])
        governed = event["governed"]
        if governed is not None:
            entry = (governed["policy_version"], event["event_id"])
            source = governed["source_event_id"]
            self.newest[source] = max(self.newest.get(source, entry), entry)
            if "comment" in event and event["user"] is not None:
                self.persons[source] = event["user"]


class Regovern:
    """One partition of a stretch of history. No Kafka; state is in memory."""

    def __init__(self, governors: PolicySource, known: Known, tally: Tally, now_us: int, context_days: int) -> None:
        """`context_days` is how far `govern` itself looks back for a step's context."""
        self._known, self._tally = known, tally
        self._fold = GovernFold(
            governors,
            dedup_days=_DEDUP_DAYS,
            max_future_s=_MAX_FUTURE_S,
            now_us=lambda: now_us,
            context_days=context_days,
        )
        self._changes = Changes(cast(PartitionState, _Nothing()))

    def take(self, record: Record, event: dict[str, Any], *, count: bool) -> list[tuple[str, str, Any]]:
        """What one record gives, as (topic, key, event); `count` is false for those before the stretch.

        Those before it are taken all the same: whether the context of a step is clean depends on them.
        """
        into, before = INTO[record.topic], None
        if record.topic in _RAW:
            before = cast(Governance, event["governed"])
            source = before["source_event_id"]
            if self._known.newest.get(source, (0, ""))[1] != event["event_id"]:
                self._tally.read += count
                self._tally.superseded += count
                return []
            topic = _RAW[record.topic]
            event = event | {"event_id": source, "governed": None}
            record = Record(topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value)
        elif record.topic == "feedback" and event["user"] is None:
            event = event | {"user": self._known.persons.get(event["event_id"])}
        sink = _Sink()
        erased = is_erased(event)
        try:
            self._fold.apply(record, event, self._changes, sink)
            refused = False
        except InvalidRecord:
            refused = True
        if not count:
            return []
        self._tally.read += 1
        self._tally.refused += refused
        results = [one for one in sink.given if one[0] == into]
        if not results:
            withheld = any(topic == "governance-audit" and e["action"] == "withheld" for topic, _, e in sink.given)
            self._tally.withheld += withheld or erased
            self._tally.superseded += not (withheld or erased or refused)
            return []
        [(_, _, result)] = results
        if result["event_id"] in self._known.results:
            self._tally.known += 1
            return []
        if before is not None:
            _keep(before, result["governed"])
        self._tally.governed += 1
        self._tally.trainable += result["governed"]["trainable"]
        self._tally.rules.update(result["governed"]["redactions"])
        return sink.given


def _keep(before: Governance, now: Governance) -> None:
    """What was found the first time still holds: the text that comes in has lost it already."""
    now["trainable"] = now["trainable"] and before["trainable"]
    now["flags"] = sorted({*before["flags"], *now["flags"]})
    now["redactions"] = dict(Counter(before["redactions"]) + Counter(now["redactions"]))


class _Nothing:
    """A store in which nothing is stored: all there is stands in the changes."""

    def get(self, key: bytes) -> None:
        """Nothing."""


class _Sink(Outputs):
    """Keeps events as they are."""

    def __init__(self) -> None:
        self.silent = False
        self.given: list[tuple[str, str, Any]] = []

    def emit(self, topic: str, key: str, record: Any) -> None:
        """Keeps it."""
        self.given.append((topic, key, record))

    def count(self, counter: Any, by: int = 1) -> None:
        """Nothing: the tally counts."""


def stretches_between(
    begin: Mapping[tuple[str, int], tuple[int, int]], end: Mapping[tuple[str, int], tuple[int, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Offsets from the beginning of one set of stretches to the beginning of another."""
    return {place: (low, max(low, end[place][0])) for place, (low, _) in begin.items()}


def total(stretches: Iterable[tuple[int, int]]) -> int:
    """Offsets in stretches."""
    return sum(end - begin for begin, end in stretches)


_DAY_MS = 24 * 3600 * 1000
_CURRENT_S = 30.0


class CannotReplayError(Exception):
    """The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class ReplayBound:
    """A place of a topic: a time, or an offset in each partition; neither: its beginning or its end."""

    time_ms: int | None = None
    offset: int | None = None


Progress = Callable[[int, int], None]
"""Told how many offsets of how many were read."""


def replay(
    settings: Settings,
    topic: str,
    begin: ReplayBound,
    end: ReplayBound,
    *,
    dry_run: bool,
    progress: Progress,
) -> Tally:
    """Governs a stretch of a topic anew; returns when everything is durable. Cut off, it is simply run again.

    Args:
        settings: where everything is.
        topic: what is read, one of `INTO`; a governed topic where the raw one is gone, for stricter policies.
        begin: where the stretch begins.
        end: where it ends.
        dry_run: count only.
        progress: told after each batch.

    Raises:
        CannotReplayError: what tenants want cannot be known.
        CannotGovern: a tenant's policy cannot be applied.
    """
    with ExitStack() as held:
        tables = [held.enter_context(Table(settings, name)) for name in ("policies", "consents")]
        for table in tables:
            if not table.wait_current(_CURRENT_S):
                raise CannotReplayError("policies and consents cannot be read: is Kafka there?")
        codec = held.enter_context(closing(codec_of(settings)))
        reader = held.enter_context(closing(LogReader(settings.kafka, "stepstream-replay", _never)))
        rulings = ActivePolicies(pseudonym_key(settings), *tables)
        ask = _Asker(codec)
        known = Known()
        for event in ask.events(reader, reader.since(INTO[topic], 0)):
            known.note(event)
        context_days = settings.govern.dedup_days
        stretches, first = _stretches(reader, topic, begin, end, (context_days + 1) * _DAY_MS)
        tally, done, size = Tally(), 0, total(stretches.values())
        publisher = None if dry_run else Publisher(settings, codec, "replay/1", _never)
        partitions: dict[int, Regovern] = {}
        now_us = time.time_ns() // 1000
        for batch in reader.read(stretches):
            out = Outputs("replay@1", codec, ask.patiently)
            for record in batch:
                if record.partition not in partitions:
                    partitions[record.partition] = Regovern(rulings, known, tally, now_us, context_days)
                event = ask.event(record.topic, record.value)
                if event is None:
                    tally.refused += record.offset >= first[record.partition]
                    continue
                given = partitions[record.partition].take(record, event, count=record.offset >= first[record.partition])
                for into, key, result in given:
                    out.emit(into, key, result)
            if publisher is not None and out.events:
                publisher.publish(out.events)
            done += len(batch)
            progress(done, size)
        return tally


def _never() -> bool:
    """Nobody takes the work away: Ctrl-C raises."""
    return False


class _Asker:
    """Decodes records, waiting for a registry that is away."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def patiently(self, call: Callable[[], Any]) -> Any:
        """The result of a call that needs the registry."""
        return retry_while(call, RegistryUnavailable, _never)

    def event(self, topic: str, value: bytes | None) -> Any:
        """A record; None where it cannot be read."""
        try:
            return self.patiently(lambda: self._codec.decode(topic, value))
        except CodecError:
            return None

    def events(self, reader: LogReader, stretches: dict[tuple[str, int], tuple[int, int]]) -> Any:
        """Readable records of stretches."""
        for batch in reader.read(stretches):
            for record in batch:
                event = self.event(record.topic, record.value)
                if event is not None:
                    yield event


def _stretches(
    reader: LogReader, topic: str, begin: ReplayBound, end: ReplayBound, lead_ms: int
) -> tuple[dict[tuple[str, int], tuple[int, int]], dict[int, int]]:
    """What to read, with `lead_ms` before the stretch for contexts, and its first offset by partition."""
    everything = reader.since(topic, 0)
    first = {
        place: (min(max(low, begin.offset), high) if begin.offset is not None else low, high)
        for place, (low, high) in everything.items()
    }
    read = dict(everything)
    if begin.time_ms is not None:
        first = reader.since(topic, max(1, begin.time_ms))
        read = reader.since(topic, max(1, begin.time_ms - lead_ms))
    if end.time_ms is not None:
        read = stretches_between(read, reader.since(topic, max(1, end.time_ms)))
    elif end.offset is not None:
        read = {place: (low, max(low, min(high, end.offset))) for place, (low, high) in read.items()}
    return read, {partition: low for (_, partition), (low, _) in first.items()}
