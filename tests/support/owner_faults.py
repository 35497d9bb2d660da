"""Faults of the runtime that the model of owners must notice."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from owner_model import Publisher, Transaction

from stepstream.jobs.runtime import snapshot_store
from stepstream.jobs.runtime.fetch import GroupMember
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.state import PartitionState


def skip_a_record_after_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    restore = PartitionState.replace

    def restored(state: PartitionState, folder: Path) -> None:
        restore(state, folder)
        late = {topic: offset + 1 for topic, offset in state.position.items()}
        state.write(state.begin(), late, state.written_ms)

    patch.setattr(PartitionState, "replace", restored)


def restore_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Take snapshots before the commit, and restore them in any case."""
    commit = FoldProcessor._commit

    def snapshot_first(self: FoldProcessor, batches: Any) -> None:
        for batch in batches:
            number, state = batch.partition.number, batch.partition.state
            with tempfile.TemporaryDirectory() as folder:
                before = Path(folder) / "before"
                state.checkpoint(before)
                copied = PartitionState(before)
                changes = copied.begin()
                changes.overlay = dict(batch.changes.overlay)
                copied.write(changes, batch.position, self._now_ms(), batch.ticks)
                copied.close()
                position = dict(copied.position)
                self._snapshots._store.write(before, state.identity, number, position, batch.ticks, copied.written_ms)
        commit(self, batches)

    patch.setattr(FoldProcessor, "_commit", snapshot_first)
    patch.setattr(snapshot_store, "check_usable", lambda *_: None)


def commit_in_any_generation(patch: pytest.MonkeyPatch) -> None:
    """Let the group accept the offsets of every worker."""
    send = Publisher._send

    def sent(self: Publisher, transaction: Transaction, outputs: Any, offsets: Any, member: GroupMember) -> None:
        [accepted, *_] = self._log.members
        send(self, transaction, outputs, offsets, replace(member, generation=self._log.generation, member_id=accepted))

    patch.setattr(Publisher, "_send", sent)


def write_state_first(patch: pytest.MonkeyPatch) -> None:
    """Write the states before the transaction."""
    commit = FoldProcessor._commit

    def written(self: FoldProcessor, batches: Any) -> None:
        for batch in batches:
            state = batch.partition.state
            changes = state.begin()
            changes.overlay = dict(batch.changes.overlay)
            state.write(changes, batch.position, self._now_ms(), batch.ticks)
        commit(self, batches)

    patch.setattr(FoldProcessor, "_commit", written)


FAULTS = [skip_a_record_after_a_snapshot, restore_what_is_not_committed, commit_in_any_generation, write_state_first]
