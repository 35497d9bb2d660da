"""Reads a stretch of history, governs it anew and publishes what is new: `stepstream replay`."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from stepstream.config import Settings
from stepstream.config.secrets import pseudonym_key
from stepstream.crypto.key_ring import codec_of
from stepstream.jobs.governance.regoverning import INTO, Known, Regovern, Tally, stretches_between, total
from stepstream.jobs.governance.ruling import Rulings
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.outputs import Outputs, Publisher
from stepstream.jobs.runtime.retry import patiently
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.table import Table

_DAY_MS = 24 * 3600 * 1000
_CURRENT_S = 30.0


class CannotReplayError(Exception):
    """The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place of a topic: a time, or an offset in each partition; neither: its beginning or its end."""

    time_ms: int | None = None
    offset: int | None = None


Progress = Callable[[int, int], None]
"""Told how many offsets of how many were read."""


def replay(
    settings: Settings,
    topic: str,
    begin: Place,
    end: Place,
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
        rulings = Rulings(pseudonym_key(settings), *tables)
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
        return patiently(call, RegistryUnavailable, _never)

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
    reader: LogReader, topic: str, begin: Place, end: Place, lead_ms: int
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
