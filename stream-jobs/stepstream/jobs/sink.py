"""The `store` job: insert every governed and derived record into ClickHouse.

Run it as `python -m stepstream.jobs.sink`. `clickhouse/rows.py` maps a record to rows. Offsets are committed after
ClickHouse acknowledges the insert. A record that is delivered again replaces its own rows, by the keys of the tables.
So the job has no state.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.clickhouse.rows import TOPICS, Row, rows
from stepstream.jobs.rewards.spec_lookup import rejection_of
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.dead_letter_limit import DeadLetterLimit
from stepstream.jobs.runtime.outputs import Outputs, Publisher
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.retry import retry_while
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.topics.catalogue import CONSENTS, DEAD_LETTERS, REWARD_SPECS
from stepstream.topics.catalogue import TOPICS as CATALOGUE
from stepstream.topics.codec import CodecError, RegistryUnavailable

log = logging.getLogger(__name__)

NAME = "store"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"


T = TypeVar("T")


class SinkProcessor:
    """Decode batches, insert their rows table by table, and publish dead letters."""

    def __init__(self, settings: Settings, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled
        self._codec = sealing_codec(settings)
        self._inserter = Inserter(settings.clickhouse, cancelled)
        self._publisher = Publisher(settings, self._codec, f"{NAME}/{VERSION}", cancelled)
        self._dead_letter_limit = DeadLetterLimit(settings.jobs.dead_letter_share)

    def open(self, partitions: Iterable[int]) -> None:
        """Do nothing: the job has no state."""

    def close(self, partitions: Iterable[int]) -> None:
        """Do nothing: the job has no state."""

    def tick(self) -> None:
        """Do nothing: no decision depends on time."""

    def shut_down(self) -> None:
        """Close the connections."""
        self._inserter.close()
        self._codec.close()

    def process(self, records: Sequence[Record]) -> None:
        """Insert a batch; it is acknowledged when this returns.

        Raises:
            Cancelled: `cancelled` returned True while a service was unavailable.
            Fatal: too many dead letters.
        """
        out = Outputs(JOB, self._codec, self._retry)
        by_table: defaultdict[str, list[Row]] = defaultdict(list)
        origins: defaultdict[str, list[tuple[Record, str]]] = defaultdict(list)
        deleted = {record.key: record.value is None for record in records if record.topic == CONSENTS}
        for record in records:
            if record.value is None and CATALOGUE[record.topic].cleanup == "compact":
                continue
            try:
                event = self._retry(partial(self._codec.decode, record.topic, record.value))
            except CodecError as error:
                out.received[""] += 1
                self._dead_letter(out, record, InvalidRecord(error.kind, str(error)))
                continue
            tenant = event.get("tenant") or ""
            out.received[tenant] += 1
            if record.topic == REWARD_SPECS and (fault := rejection_of(event)):
                self._dead_letter(out, record, InvalidRecord("invalid", fault, tenant))
                continue
            for table, row in rows(record.topic, event):
                by_table[table].append(row)
                origins[table].append((record, tenant))
        for table, batch in by_table.items():
            for index in self._inserter.insert(table, batch):
                record, tenant = origins[table][index]
                self._dead_letter(out, record, InvalidRecord("invalid", f"does not fit the table {table}", tenant))
        for key, is_deleted in deleted.items():
            if is_deleted:
                self._inserter.delete(CONSENTS, "key", (key or b"").decode(errors="replace"))
        self._dead_letter_limit.add(out.received - out.dead_lettered, out.dead_lettered)
        self._publisher.publish(out.events)
        out.apply_counts()

    def _dead_letter(self, out: Outputs, record: Record, invalid: InvalidRecord) -> None:
        if record.topic == DEAD_LETTERS:
            # A dead letter about a dead letter would return to this job.
            log.error(
                "cannot store the dead letter at partition %d offset %d: %s", record.partition, record.offset, invalid
            )
            out.count(metrics.DEAD_LETTERS.labels(record.topic, invalid.error))
        else:
            out.dead_letter(record, invalid)

    def _retry(self, call: Callable[[], T]) -> T:
        return retry_while(call, RegistryUnavailable, self._cancelled)


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop`."""

    def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
        return SinkProcessor(settings, cancelled)

    run_job(settings, stop, NAME, TOPICS, make, batch=settings.store.batch_rows, within_s=settings.store.batch_s)


if __name__ == "__main__":
    run(NAME, main)
