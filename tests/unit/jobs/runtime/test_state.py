"""State: one atomic write of changes, position and number of ticks."""

from pathlib import Path

import pytest

from stepstream.core.process import Fatal
from stepstream.jobs.runtime.state import PartitionState


def test_changes_position_and_ticks_survive_together(tmp_path: Path) -> None:
    state = PartitionState(tmp_path / "job" / "0")
    state.reset("log-1")
    changes = state.begin()
    changes.put(b"a1", b"x")
    changes.put(b"a2", b"y")
    assert changes.get(b"a1") == b"x"
    assert state.get(b"a1") is None
    state.write(changes, {"steps": 3}, 17, 5)
    more = state.begin()
    more.delete(b"a1")
    assert more.get(b"a1") is None
    state.write(more, {"feedback": 1}, 18)
    state.close()
    again = PartitionState(tmp_path / "job" / "0")
    assert (again.identity, again.position, again.written_ms) == ("log-1", {"steps": 3, "feedback": 1}, 18)
    assert list(again.scan(b"a")) == [(b"2", b"y")]
    assert again.ticks == 5
    again.close()


def test_deleting_a_range_keeps_the_keys_that_the_same_batch_writes(tmp_path: Path) -> None:
    state = PartitionState(tmp_path / "0")
    changes = state.begin()
    for key in (b"e1", b"e2", b"f1"):
        changes.put(key, b"")
    state.write(changes, {}, 0)
    changes = state.begin()
    changes.delete_range(b"e", b"f")
    changes.put(b"e1", b"new")
    state.write(changes, {}, 0)
    assert list(state.scan(b""))[1:] == [(b"e1", b"new"), (b"f1", b"")]
    state.close()


def test_reset_deletes_everything(tmp_path: Path) -> None:
    state = PartitionState(tmp_path / "0")
    changes = state.begin()
    changes.put(b"a", b"x")
    state.write(changes, {"steps": 3}, 17, 5)
    state.reset("log-2")
    assert (state.get(b"a"), state.ticks, state.position, state.identity) == (None, 0, {}, "log-2")
    state.close()


def test_a_second_process_fails_and_names_the_setting(tmp_path: Path) -> None:
    state = PartitionState(tmp_path / "0")
    with pytest.raises(Fatal, match=r"--instance 2.*STEPSTREAM_JOBS_INSTANCE"):
        PartitionState(tmp_path / "0")
    state.close()
