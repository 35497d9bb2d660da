"""The `store` job: insert every governed and derived record into ClickHouse.

Run it as `python -m stepstream.jobs.sink`. `clickhouse/rows.py` maps a record to rows. Offsets are committed after
ClickHouse acknowledges the insert. A record that is delivered again replaces its own rows, by the keys of the tables.
So the job has no state.

Beside that, it begins the rewriting of parts with hidden rows when it is due (`clickhouse/hidden_rows.py`): it runs
beside every store, embedded or not. ClickHouse does the work in the background.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from stepstream.config import Settings
from stepstream.core.metrics.stream_jobs import REFRESH_LAG, REWRITING_AGE
from stepstream.core.process import Stop, run
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.clickhouse import hidden_rows
from stepstream.jobs.clickhouse.columns import Row
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.clickhouse.retention import days_of, expired_tables
from stepstream.jobs.clickhouse.rows import TOPICS, rows
from stepstream.jobs.rewards.spec_lookup import rejection_of
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.dead_letter_limit import DeadLetterLimit
from stepstream.jobs.runtime.fetch import Fetch, GroupMember
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.processor import transactional_id_of
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.retry import retry_while
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.spans import BatchSpans, open_spans
from stepstream.jobs.runtime.transaction import TransactionalPublisher, committed_offsets
from stepstream.topics.catalogue import CONSENTS, DEAD_LETTERS, REWARD_SPECS
from stepstream.topics.catalogue import TOPICS as CATALOGUE
from stepstream.topics.codec import CodecError, RegistryUnavailable

log = logging.getLogger(__name__)

NAME = "store"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
_REFRESH_LAG = REFRESH_LAG.create()
_REWRITING_AGE = REWRITING_AGE.create()
_LOOK_EVERY_S = 10.0
"""Time between two looks at the ages of the rollups and of rewritings, and at whether a rewriting is due."""


T = TypeVar("T")


class SinkProcessor:
    """Decode batches, insert their rows table by table, and publish dead letters."""

    def __init__(self, settings: Settings, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled
        self._codec = sealing_codec(settings, keep_arrays=True)
        self._inserter = Inserter(settings, cancelled)
        self._spans = open_spans(settings, NAME)
        self._look_at_s = 0.0
        self._rewrite_hours = settings.store.rewrite_hours
        self._rewriting_s: int | None = None
        """Due time (Unix, seconds) of the newest rewriting that was begun, or needless."""
        self._days = days_of(settings.store)
        self._publisher = TransactionalPublisher(
            settings, self._codec, f"{NAME}/{VERSION}", transactional_id_of(settings, NAME), cancelled
        )
        self._member: GroupMember | None = None
        self._dead_letter_limit = DeadLetterLimit(settings.jobs.dead_letter_share)

    def open(self, partitions: Iterable[int], member: GroupMember) -> None:
        """Commit offsets in the name of `member` from now on. The job has no state."""
        self._publisher.settle(TOPICS[0], member)
        self._member = member

    def close(self, partitions: Iterable[int]) -> None:
        """Do nothing: the job has no state."""

    def tick(self) -> None:
        """Export the ages of rollups and rewritings, and begin a rewriting that is due, at most every 10 s."""
        if time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + _LOOK_EVERY_S
            lag = self._inserter.refresh_lag_s()
            if lag is not None:
                _REFRESH_LAG.set(lag)
            age = self._inserter.rewriting_age_s()
            if age is not None:
                _REWRITING_AGE.set(age)
            self._rewrite_hidden_rows(time.time())

    def _rewrite_hidden_rows(self, now_s: float) -> None:
        """Begin the rewriting that was due last, unless a process has since."""
        due_s = hidden_rows.last_due_s(now_s, self._rewrite_hours)
        if due_s is None or due_s == self._rewriting_s:
            return
        begun = self._inserter.begin_rewriting(due_s)
        if begun is None:
            return  # the next look tries again
        self._rewriting_s = due_s
        for table, parts in begun.items():
            log.info("ClickHouse rewrites %d parts of %s with hidden rows of erased persons", parts, table)

    def shut_down(self) -> None:
        """Close the connections."""
        self._inserter.close()
        self._codec.close()
        if self._spans is not None:
            self._spans.close()

    def process(self, fetch: Fetch) -> None:
        """Insert a batch, then publish its dead letters and commit its offsets in one transaction.

        Raises:
            Refused: the partitions have another owner, which inserts the same rows.
            Cancelled: `cancelled` returned True while a service was unavailable.
            Fatal: too many dead letters, or as `TransactionalPublisher.commit`.
        """
        if fetch.member != self._member:
            return
        out = self._insert(fetch.records)
        positions = {partition: end for partition, (_, end) in fetch.positions.items()}
        self._publisher.commit(out.events, committed_offsets(positions, {}), fetch.member)
        out.apply_counts()

    def _insert(self, records: Sequence[Record]) -> Outputs:
        spans = None if self._spans is None else BatchSpans(self._spans)
        out = Outputs(JOB, self._codec, self._retry, spans)
        by_table: defaultdict[str, list[Row]] = defaultdict(list)
        origins: defaultdict[str, list[tuple[Record, str]]] = defaultdict(list)
        now_us = int(time.time() * 1_000_000)
        newest_consents = {record.key: record for record in records if record.topic == CONSENTS}
        for record in records:
            if record.value is None and CATALOGUE[record.topic].is_compacted:
                continue
            try:
                event = self._retry(partial(self._codec.decode, record.topic, record.value))
            except CodecError as error:
                out.received[""] += 1
                self._dead_letter(out, record, InvalidRecord(error.kind, str(error)))
                continue
            tenant = event.get("tenant") or ""
            out.received[tenant] += 1
            if spans is not None:
                spans.begin_record(record, event)
            if record.topic == REWARD_SPECS and (fault := rejection_of(event)):
                self._dead_letter(out, record, InvalidRecord("invalid", fault, tenant))
                continue
            written_us = record.timestamp_ms * 1000 if record.timestamp_ms > 0 else None
            written = list(rows(record.topic, event, written_us))
            if expired := expired_tables(self._days, (table for table, _ in written), event, now_us):
                reason = (
                    f"older than the rows that {' and '.join(expired)} keep: see store.steps_days and its neighbours"
                )
                # Old records on the log are no fault: a replay may have any number of them.
                self._dead_letter(out, record, InvalidRecord("expired", reason, tenant), counts=False)
            for table, row in written:
                if table not in expired:
                    by_table[table].append(row)
                    origins[table].append((record, tenant))
        for table, batch in by_table.items():
            for index, reason in self._inserter.insert(table, batch).items():
                record, tenant = origins[table][index]
                self._dead_letter(out, record, InvalidRecord("invalid", reason, tenant))
        for key, record in newest_consents.items():
            if record.value is None:
                refusal = self._inserter.delete(CONSENTS, "key", (key or b"").decode(errors="replace"))
                if refusal is not None:
                    self._dead_letter(out, record, InvalidRecord("invalid", refusal))
        self._dead_letter_limit.add(out.received - out.dead_lettered, out.dead_lettered)
        return out

    def _dead_letter(self, out: Outputs, record: Record, invalid: InvalidRecord, *, counts: bool = True) -> None:
        if record.topic == DEAD_LETTERS:
            # A dead letter about a dead letter would return to this job.
            log.error(
                "cannot store the dead letter at partition %d offset %d: %s", record.partition, record.offset, invalid
            )
            out.count(metrics.DEAD_LETTERS.labels(record.topic, invalid.error))
        else:
            out.dead_letter(record, invalid, counts=counts)

    def _retry(self, call: Callable[[], T]) -> T:
        return retry_while(call, RegistryUnavailable, self._cancelled)


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop`."""

    def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
        return SinkProcessor(settings, cancelled)

    run_job(settings, stop, NAME, TOPICS, make, batch=settings.store.batch_rows, within_s=settings.store.batch_s)


if __name__ == "__main__":
    run(NAME, main)
