"""The `store` job: puts every governed and derived record into ClickHouse.

Run it as `python -m stepstream.jobs.sink`. A record becomes rows as `storage/rows.py` says. Offsets are committed
after the insert was acknowledged; what is delivered again folds into the rows that are there (the tables' keys see to
that), so the job keeps no state.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.crypto.key_ring import codec_of
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.clickhouse.rows import TOPICS, Row, rows
from stepstream.jobs.rewards.spec_lookup import REWARD_SPECS, unreadable
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.dead_letter_limit import DeadLetterShare
from stepstream.jobs.runtime.outputs import DEAD_LETTERS, Outputs, Publisher
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.retry import retry_while
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.topics.catalogue import TOPICS as CATALOGUE
from stepstream.topics.codec import CodecError, RegistryUnavailable

log = logging.getLogger(__name__)

NAME = "store"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"

CONSENTS = "consents"
"""The topic of which records are deleted, and its table: a person may be forgotten there."""

T = TypeVar("T")


class StoreProcessor:
    """Decodes batches, inserts their rows table by table, publishes dead letters."""

    def __init__(self, settings: Settings, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled
        self._codec = codec_of(settings)
        self._inserter = Inserter(settings.clickhouse, cancelled)
        self._publisher = Publisher(settings, self._codec, f"{NAME}/{VERSION}", cancelled)
        self._share = DeadLetterShare(settings.jobs.dead_letter_share)

    def open(self, partitions: Iterable[int]) -> None:
        """Nothing to recover."""

    def close(self, partitions: Iterable[int]) -> None:
        """Nothing to release."""

    def tick(self) -> None:
        """Nothing depends on time."""

    def shut_down(self) -> None:
        """Frees the connections."""
        self._inserter.close()
        self._codec.close()

    def process(self, records: Sequence[Record]) -> None:
        """Inserts a batch; when it returns, everything is acknowledged.

        Raises:
            Abandoned: asked to give up while something was away.
            Fatal: too many dead letters.
        """
        out = Outputs(JOB, self._codec, self._patiently)
        by_table: defaultdict[str, list[Row]] = defaultdict(list)
        origins: defaultdict[str, list[tuple[Record, str]]] = defaultdict(list)
        deleted = {record.key: record.value is None for record in records if record.topic == CONSENTS}
        for record in records:
            if record.value is None and CATALOGUE[record.topic].cleanup == "compact":
                continue
            try:
                event = self._patiently(partial(self._codec.decode, record.topic, record.value))
            except CodecError as error:
                out.came[""] += 1
                self._refuse(out, record, InvalidRecord(error.kind, str(error)))
                continue
            tenant = event.get("tenant") or ""
            out.came[tenant] += 1
            if record.topic == REWARD_SPECS and (fault := unreadable(event)):
                self._refuse(out, record, InvalidRecord("invalid", fault, tenant))
                continue
            for table, row in rows(record.topic, event):
                by_table[table].append(row)
                origins[table].append((record, tenant))
        for table, batch in by_table.items():
            for place in self._inserter.insert(table, batch):
                record, tenant = origins[table][place]
                self._refuse(out, record, InvalidRecord("invalid", f"does not fit the table {table}", tenant))
        for key, gone in deleted.items():
            if gone:
                self._inserter.delete(CONSENTS, "key", (key or b"").decode(errors="replace"))
        self._share.note(out.came - out.refused, out.refused)
        self._publisher.publish(out.events)
        out.show_counts()

    def _refuse(self, out: Outputs, record: Record, refused: InvalidRecord) -> None:
        if record.topic == DEAD_LETTERS:
            # A dead letter about a dead letter would come back here.
            log.error("dead letter at partition %d offset %d is unusable: %s", record.partition, record.offset, refused)
            out.count(metrics.DEAD_LETTERS.labels(record.topic, refused.error))
        else:
            out.dead_letter(record, refused)

    def _patiently(self, call: Callable[[], T]) -> T:
        return retry_while(call, RegistryUnavailable, self._cancelled)


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop."""

    def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
        return StoreProcessor(settings, cancelled)

    run_job(settings, stop, NAME, TOPICS, make, batch=settings.store.batch_rows, within_s=settings.store.batch_s)


if __name__ == "__main__":
    run(NAME, main)
