"""Fold a batch of one partition, and set aside the records at which the fold raises.

A fold that raises would end this worker, and then each worker that gets the partition. So the batch is folded again
without the changes of the failed attempt. A record that fails twice becomes a dead letter of class `failed`, with the
place of the exception; `stepstream dead-letters redrive` sends it again after a mend.

If many records fail, the fold itself is at fault: the exception ends the worker, which is loud. So does a fault of a
service or of the disk.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any

from stepstream.jobs.runtime.fold import FoldJob, Partition
from stepstream.jobs.runtime.fold_errors import build_fold, describe, is_of_fold, trace
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.state import Changes

log = logging.getLogger(__name__)

FAILED = "failed"
"""Error class of a record at which the fold raised."""
_ATTEMPTS = 2
_MAX_SET_ASIDE = 20
"""Records of one batch; more of them end the worker."""

Position = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class BatchFolder:
    """Folds batches of one job. Use from one thread."""

    def __init__(
        self, job: FoldJob, decode: Callable[[Record], dict[str, Any]], outputs: Callable[[], Outputs]
    ) -> None:
        self._job, self._decode, self._outputs = job, decode, outputs

    def fold(
        self,
        partition: Partition,
        records: Sequence[Record],
        *,
        replaying: bool = False,
        skipped: Set[Position] = frozenset(),
    ) -> tuple[Changes, Outputs]:
        """Fold records; return the changes of the state, not written yet, and the results.

        Args:
            partition: gets a new fold, without the changes of the attempt, each time that the fold raises.
            records: records in order.
            replaying: as `Outputs.replaying`.
            skipped: records that were set aside when they were folded first.

        Raises:
            Exception: of the fold, if too many records fail, or if it fails without a new record; or of a service.
        """
        if skipped:
            records = [record for record in records if _position(record) not in skipped]
        set_aside: dict[Position, str] = {}
        failures: Counter[Position] = Counter()
        one_by_one = False
        while True:
            changes, out = partition.state.begin(), self._outputs()
            out.replaying = replaying
            try:
                self._apply(partition, records, set_aside, changes, out, one_by_one=one_by_one)
                return changes, out
            except _FoldFailed as failed:
                partition.fold = build_fold(self._job, partition.number, partition.state)
                if failed.record is None:  # after the batch: find the record by folding one at a time
                    one_by_one = True
                    continue
                position = _position(failed.record)
                failures[position] += 1
                if position in set_aside or len(set_aside) >= _MAX_SET_ASIDE:
                    raise failed.error from None
                if failures[position] >= _ATTEMPTS:
                    set_aside[position] = describe(failed.error)
                    log.error("%s fails at %s[%d]@%d, which is set aside: %s\n%s", self._job.name, *position,
                              set_aside[position], trace(failed.error))  # fmt: skip

    def _apply(
        self,
        partition: Partition,
        records: Sequence[Record],
        set_aside: dict[Position, str],
        changes: Changes,
        out: Outputs,
        *,
        one_by_one: bool,
    ) -> None:
        fold = partition.fold
        for record in records:
            tenant = ""
            try:
                event = self._decode(record)
                tenant = event.get("tenant") or ""
                if set_aside and (reason := set_aside.get(_position(record))):
                    raise InvalidRecord(FAILED, reason, tenant)
                if out.spans is not None:
                    out.spans.begin_record(record, event)
                fold.apply(record, event, changes, out)
            except InvalidRecord as invalid:
                tenant = invalid.tenant = invalid.tenant or tenant
                out.dead_letter(record, invalid)
            except Exception as error:
                raise _failure(error, record) from error
            out.received[tenant] += 1
            if one_by_one:
                _end_batch(partition, changes, out, record)
        if records and not one_by_one:
            _end_batch(partition, changes, out, None)


def _end_batch(partition: Partition, changes: Changes, out: Outputs, record: Record | None) -> None:
    try:
        if out.spans is not None:
            out.spans.end_records()
        partition.fold.end_batch(changes, out)
    except Exception as error:
        raise _failure(error, record) from error


class _FoldFailed(Exception):
    """The fold raised `error` at a record; None: at the end of a batch."""

    def __init__(self, error: Exception, record: Record | None) -> None:
        super().__init__(str(error))
        self.error, self.record = error, record


def _failure(error: Exception, record: Record | None) -> Exception:
    """Return the failure of a fold, or the error itself if a record is not at fault."""
    return _FoldFailed(error, record) if is_of_fold(error) else error


def _position(record: Record) -> Position:
    return record.topic, record.partition, record.offset
