"""Test which inputs of decisions are recorded."""

from pathlib import Path

import numpy as np
import pytest

from stepstream.services.control.recording import Recording
from stepstream.services.control.simulate.recorded import Recorded, read_lines
from stepstream.services.control.simulate.world import World


def recorded(ticks: int) -> list[Recorded]:
    """Return snapshots that are two hours apart."""
    world = World(frozenset(), 50, 20, np.random.default_rng(1))
    records = []
    for _ in range(ticks):
        world.advance()
        records.append(Recorded(world.snapshot(), world.history([])))
    return records


def test_a_new_decision_is_always_recorded_and_others_at_the_interval(tmp_path: Path) -> None:
    records = recorded(4)
    recording = Recording(tmp_path / "new", 3 * 3600)
    for one, is_new in zip(records, (False, False, True, False), strict=True):
        recording.add(one.snapshot, one.history, is_new=is_new)
    kept = [one for file in sorted((tmp_path / "new").iterdir()) for one in read_lines(file.read_bytes().splitlines())]
    assert kept == [records[0], records[2]]


def test_a_folder_that_cannot_be_written_delays_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    [one] = recorded(1)
    Recording(tmp_path / "file", 60).add(one.snapshot, one.history, is_new=True)
    assert "did not record a snapshot" in caplog.text
