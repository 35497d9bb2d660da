"""Govern a stretch of history again, with the fold of the `govern` job: `stepstream replay`.

Results get the ids that the job gives them under the tenant's present policy. So results that the job already
published under that version are recognised and skipped, and a second replay publishes nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, cast

from stepstream.config import Settings
from stepstream.config.secrets import pseudonym_key
from stepstream.core.prices import Prices
from stepstream.crypto.key_ring import sealing_codec
from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold, PolicySource
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.outputs import Outputs, Publisher
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.retry import retry_while
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.topics.catalogue import (
    CONSENTS,
    FEEDBACK,
    GOVERNANCE_AUDIT,
    GOVERNED_FEEDBACK,
    GOVERNED_STEPS,
    POLICIES,
    STEPS,
)
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.events import Governance
from stepstream.topics.table import Table

OUTPUT_TOPICS: dict[str, str] = {
    STEPS: GOVERNED_STEPS,
    FEEDBACK: GOVERNED_FEEDBACK,
    GOVERNED_STEPS: GOVERNED_STEPS,
    GOVERNED_FEEDBACK: GOVERNED_FEEDBACK,
}
"""Topics that can be read, and the topics of their results."""
_RAW = {GOVERNED_STEPS: STEPS, GOVERNED_FEEDBACK: FEEDBACK}
_DEDUP_DAYS = 36_500
_MAX_FUTURE_S = 1e9
"""No limit: `govern` checked the time when it first governed the event."""
_DAY_MS = 24 * 3600 * 1000
_TABLES_S = 30.0

Progress = Callable[[int, int], None]
"""Receives the number of records read so far, and the number of offsets to read."""


class CannotReplayError(Exception):
    """Policies and consents cannot be read; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ReplayBound:
    """A bound of the stretch: a time, or an offset in each partition. Neither: the beginning or end of the topic."""

    time_ms: int | None = None
    offset: int | None = None


@dataclass
class ReplayCounts:
    """The number of records by result. `stepstream replay --json` prints the fields by name."""

    read: int = 0
    governed: int = 0
    """Published again."""
    known: int = 0
    """Already governed under this version."""
    withheld: int = 0
    """Without consent now, or of a person who was erased."""
    refused: int = 0
    """Invalid: they are dead letters of `govern`."""
    superseded: int = 0
    """Older results for a source, or copies of a record."""
    trainable: int = 0
    """Those of `governed` that may be trained on."""
    rules: Counter[str] = field(default_factory=Counter)
    """Redactions in those of `governed`, by rule."""


def replay(
    settings: Settings,
    topic: str,
    begin: ReplayBound,
    end: ReplayBound,
    *,
    dry_run: bool,
    progress: Progress,
) -> ReplayCounts:
    """Govern a stretch of a topic again; return when the results are durable. After an interruption, run it again.

    Args:
        settings: addresses and keys.
        topic: a key of `OUTPUT_TOPICS`. If the raw topic is deleted, read the governed one, for stricter policies.
        begin: begin of the stretch.
        end: end of the stretch.
        dry_run: only count.
        progress: called after each batch.

    Raises:
        CannotReplayError: policies and consents cannot be read.
        CannotGovern: a tenant's policy cannot be applied.
    """
    with ExitStack() as stack:
        tables = [stack.enter_context(Table(settings, name)) for name in (POLICIES, CONSENTS)]
        for table in tables:
            if not table.wait_current(_TABLES_S):
                raise CannotReplayError(f"cannot read policies and consents within {_TABLES_S:g} s: is Kafka up?")
        codec = stack.enter_context(closing(sealing_codec(settings, keep_arrays=True)))
        reader = stack.enter_context(closing(LogReader(settings.kafka, "stepstream-replay", _never)))
        policies = ActivePolicies(pseudonym_key(settings), *tables)
        decoder = _RetryingDecoder(codec)
        index = GovernedIndex()
        for event in decoder.events(reader, reader.since(OUTPUT_TOPICS[topic], 0)):
            index.add(event)
        context_days = settings.govern.dedup_days
        ranges, first = _offset_ranges(reader, topic, begin, end, (context_days + 1) * _DAY_MS)
        counts, done, size = ReplayCounts(), 0, count_offsets(ranges.values())
        publisher = None if dry_run else Publisher(settings, codec, "replay/1", _never)
        partitions: dict[int, PartitionReplay] = {}
        now_us = time.time_ns() // 1000
        for batch in reader.read(ranges):
            out = Outputs("replay@1", codec, decoder.retry)
            for record in batch:
                if record.partition not in partitions:
                    partitions[record.partition] = PartitionReplay(
                        policies, index, counts, now_us, context_days, Prices(settings.gateway.prices)
                    )
                is_counted = record.offset >= first[record.partition]
                event = decoder.event(record.topic, record.value)
                if event is None:
                    counts.refused += is_counted
                    continue
                for output_topic, key, result in partitions[record.partition].govern(record, event, count=is_counted):
                    out.emit(output_topic, key, result)
            if publisher is not None and out.events:
                publisher.publish(out.events)
            done += len(batch)
            progress(done, size)
        return counts


@dataclass
class GovernedIndex:
    """The results on a governed topic: their ids, and the newest result of each source event."""

    results: set[str] = field(default_factory=set)
    newest: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Policy version and id of the newest result, by source id."""
    numbers: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """`step_index` and `prompt_shared_step` of a step by source id, as `govern` decided them."""
    persons: dict[str, str] = field(default_factory=dict)
    """Person of feedback by source id, also where `govern` found the person by the trajectory."""

    def add(self, event: Any) -> None:
        """Add a governed event."""
        self.results.add(event["event_id"])
        governed = event["governed"]
        if governed is not None:
            entry = (governed["policy_version"], event["event_id"])
            source = governed["source_event_id"]
            self.newest[source] = max(self.newest.get(source, entry), entry)
            if "step_index" in event and "messages" in event:
                self.numbers[source] = event["step_index"], event["prompt_shared_step"]
            if "comment" in event and event["user"] is not None:
                self.persons[source] = event["user"]


class PartitionReplay:
    """Replays one partition. It uses no Kafka; its state is in memory."""

    def __init__(
        self,
        policies: PolicySource,
        index: GovernedIndex,
        counts: ReplayCounts,
        now_us: int,
        context_days: int,
        prices: Prices | None = None,
    ) -> None:
        """`context_days` as `govern` uses it to find a step's context; `prices` as in `GovernFold`."""
        self._index, self._counts = index, counts
        self._fold = GovernFold(
            policies,
            dedup_days=_DEDUP_DAYS,
            max_future_s=_MAX_FUTURE_S,
            now_us=lambda: now_us,
            context_days=context_days,
            prices=prices,
        )
        self._changes = Changes(cast(PartitionState, _EmptyState()))

    def govern(self, record: Record, event: dict[str, Any], *, count: bool) -> list[tuple[str, str, Any]]:
        """Govern one record; return the new events as (topic, key, event).

        `count` is False for records before the stretch. They are folded, because later contexts depend on them, but
        return no events.
        """
        output_topic, before = OUTPUT_TOPICS[record.topic], None
        if record.topic in _RAW:
            before = cast(Governance, event["governed"])
            source = before["source_event_id"]
            if self._index.newest.get(source, (0, ""))[1] != event["event_id"]:
                self._counts.read += count
                self._counts.superseded += count
                return []
            topic = _RAW[record.topic]
            event = event | {"event_id": source, "governed": None}
            record = Record(topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value)
        elif record.topic == STEPS and event["event_id"] in self._index.numbers:
            index, shared = self._index.numbers[event["event_id"]]
            event = event | {"step_index": index, "prompt_shared_step": shared, "counted_by": None}
        elif record.topic == FEEDBACK and event["user"] is None:
            event = event | {"user": self._index.persons.get(event["event_id"])}
        out = _EventList()
        erased = is_erased(event)
        try:
            self._fold.apply(record, event, self._changes, out)
            invalid = False
        except InvalidRecord:
            invalid = True
        if not count:
            return []
        self._counts.read += 1
        self._counts.refused += invalid
        results = [event for topic, _, event in out.emitted if topic == output_topic]
        if not results:
            withheld = any(topic == GOVERNANCE_AUDIT and e["action"] == "withheld" for topic, _, e in out.emitted)
            self._counts.withheld += withheld or erased
            self._counts.superseded += not (withheld or erased or invalid)
            return []
        [result] = results
        if result["event_id"] in self._index.results:
            self._counts.known += 1
            return []
        if before is not None:
            _merge_earlier(before, result["governed"])
        self._counts.governed += 1
        self._counts.trainable += result["governed"]["trainable"]
        self._counts.rules.update(result["governed"]["redactions"])
        return out.emitted


def _merge_earlier(before: Governance, now: Governance) -> None:
    """Add the findings of the first run, which the governed text does not contain any more."""
    now["trainable"] = now["trainable"] and before["trainable"]
    now["flags"] = sorted({*before["flags"], *now["flags"]})
    now["redactions"] = dict(Counter(before["redactions"]) + Counter(now["redactions"]))


class _EmptyState:
    """A state without keys: all entries are in the changes."""

    def get(self, key: bytes) -> None:
        """Return None."""


class _EventList(Outputs):
    """Collects events without encoding them."""

    def __init__(self) -> None:
        self.replaying = False
        self.emitted: list[tuple[str, str, Any]] = []

    def emit(self, topic: str, key: str, record: Any) -> None:
        """Append an event."""
        self.emitted.append((topic, key, record))

    def count(self, counter: Any, by: int = 1) -> None:
        """Do nothing: `ReplayCounts` counts."""


class _RetryingDecoder:
    """Decodes records; waits while the registry is unavailable."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def retry(self, call: Callable[[], Any]) -> Any:
        """Call `call` until the registry answers; return its result."""
        return retry_while(call, RegistryUnavailable, _never)

    def event(self, topic: str, value: bytes | None) -> Any:
        """Decode a record; return None if it cannot be decoded."""
        try:
            return self.retry(lambda: self._codec.decode(topic, value))
        except CodecError:
            return None

    def events(self, reader: LogReader, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> Iterator[Any]:
        """Yield the records of offset ranges that can be decoded."""
        for batch in reader.read(ranges):
            for record in batch:
                event = self.event(record.topic, record.value)
                if event is not None:
                    yield event


def _never() -> bool:
    """Never cancel: Ctrl-C raises."""
    return False


def _offset_ranges(
    reader: LogReader, topic: str, begin: ReplayBound, end: ReplayBound, lead_ms: int
) -> tuple[dict[tuple[str, int], tuple[int, int]], dict[int, int]]:
    """Return the offsets to read, from `lead_ms` before the stretch for contexts, and its first offset by partition."""
    everything = reader.since(topic, 0)
    first = {
        partition: (min(max(low, begin.offset), high) if begin.offset is not None else low, high)
        for partition, (low, high) in everything.items()
    }
    ranges = dict(everything)
    if begin.time_ms is not None:
        first = reader.since(topic, max(1, begin.time_ms))
        ranges = reader.since(topic, max(1, begin.time_ms - lead_ms))
    if end.time_ms is not None:
        ranges = ranges_between(ranges, reader.since(topic, max(1, end.time_ms)))
    elif end.offset is not None:
        ranges = {partition: (low, max(low, min(high, end.offset))) for partition, (low, high) in ranges.items()}
    return ranges, {partition: low for (_, partition), (low, _) in first.items()}


def ranges_between(
    begin: Mapping[tuple[str, int], tuple[int, int]], end: Mapping[tuple[str, int], tuple[int, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the offsets from the begin of one set of ranges to the begin of another."""
    return {partition: (low, max(low, end[partition][0])) for partition, (low, _) in begin.items()}


def count_offsets(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the number of offsets in ranges."""
    return sum(end - begin for begin, end in ranges)
