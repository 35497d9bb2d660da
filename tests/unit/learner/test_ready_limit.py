"""Check that ready groups are bounded in bytes: the learner stops reading, and goes on after an update took some."""

from types import SimpleNamespace
from typing import Any

import pytest
from buffers import SIZE, buffer, log_of
from labelled_records import group_of

from stepstream.config import LearnerSettings
from stepstream.learner import lineage_training
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.reader import Arrival
from stepstream.learner.decisions import Decider
from stepstream.learner.lineage_training import LineageTraining
from stepstream.learner.reporter import Reporter

GROUPS, PER_UPDATE, ALLOWED = 12, 2, 3


class Log:
    """A reader that has one record at a time."""

    def __init__(self, attempts: list[Attempt]) -> None:
        self.left = attempts

    def next(self, _wait_s: float) -> list[Arrival]:
        return [Arrival(each.position, each) for each in [self.left.pop(0)]] if self.left else []

    def is_behind(self) -> bool:
        return bool(self.left)


def test_reading_stops_while_ready_groups_take_as_many_bytes_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = log_of(*(record for n in range(GROUPS) for record in group_of(f"g{n}", SIZE)))
    largest = max(sum(each.size_bytes for each in attempts[at : at + SIZE]) for at in range(0, len(attempts), SIZE))
    monkeypatch.setattr(lineage_training, "_MB", largest)
    log: Any = Log(attempts)
    training = object.__new__(LineageTraining)  # without Kafka and a model
    training._config = LearnerSettings(ready_mb=ALLOWED, groups_per_update=PER_UPDATE)
    training._buffer, training._uses, training._version = buffer(), {}, 0
    training._left_out, training._root = frozenset(), 0
    training._updates_before, training._updates = 0, []
    sender: Any = SimpleNamespace(put=lambda _events: None)
    training._reporter = Reporter(Decider("m", 0), sender)
    taken, stops = 0, 0
    while log.left or training._buffer.has(PER_UPDATE, 1):
        training._read_arrivals(log)
        assert training._buffer.ready_bytes() <= (ALLOWED + 1) * largest
        left = len(log.left)
        training._read_arrivals(log)
        assert len(log.left) == left, "read on while it was full"
        stops += bool(left)
        taken += len(training._buffer.take(PER_UPDATE, 1) or [])
    assert taken == GROUPS
    assert stops > 1
