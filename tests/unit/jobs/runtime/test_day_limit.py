"""Entries in buckets by day have a cap and a metric, and the oldest days go first; shown on the state of `govern`."""

from collections import Counter
from typing import Any

import pytest
from fold_harness import FoldRun, MemoryState, state_added, state_removed
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_records import T0_US, make_steps

from stepstream.jobs.governance import JOB
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold
from stepstream.jobs.governance.state import CLEAN, COUNTED, PERSON, SEEN, USED, TrajectoryPersons
from stepstream.jobs.runtime import day_limit
from stepstream.jobs.runtime.day_limit import DayLimit

DAY_US = 86_400_000_000


class LimitedRun(FoldRun):
    """A run whose fold remembers at most `most` events; its clock is `today`."""

    def __init__(self, most: int, state: MemoryState | None = None, dedup_days: int = 7) -> None:
        state = state or MemoryState()
        self.today = 0
        fold = GovernFold(
            ActivePolicies(b"key", {}, {}),
            dedup_days=dedup_days,
            max_future_s=300.0,
            now_us=lambda: self.now_us,
            persons=TrajectoryPersons(30),
            limit=DayLimit(state, COUNTED, most),  # type: ignore[arg-type]
        )
        super().__init__(JOB, fold, state)
        self.limit = fold._limit

    @property
    def now_us(self) -> int:
        return T0_US + self.today * DAY_US

    def steps(self, name: str, count: int, user: str | None = None) -> list[tuple[str, str, Any]]:
        """Feed steps of today; return the outputs but audit entries."""
        steps = make_steps(name, count, at_us=self.now_us, user=user)
        records = [self.record("steps", step, at_ms=self.now_us // 1000) for step in steps]
        return [output for output in self.feed(records) if output[0] == "governed-steps"]

    def tick_now(self) -> None:
        self.tick(self.now_us // 1000)

    def days(self, kind: bytes) -> Counter[int]:
        """Count the entries of a kind by day, where 0 is the first day."""
        days = (int.from_bytes(key[1:5]) for key in self.state.content if key.startswith(kind))
        return Counter(day - T0_US // DAY_US for day in days)


def test_the_oldest_events_make_room_and_their_copies_are_governed_again() -> None:
    run, before = LimitedRun(most=20), state_removed("event", "cap")
    first = {}
    for run.today in range(3):
        first[run.today] = run.steps(f"t{run.today}", 10)
        assert len(first[run.today]) == 10
    run.tick_now()
    newest = run.days(SEEN)
    assert newest.total() <= 20
    assert newest[1] == newest[2] == 10
    assert state_removed("event", "cap") - before == 30 - newest.total()
    run.today = 2
    assert run.steps("t2", 10) == []
    run.today = 0
    again = run.steps("t0", 10)
    assert len(again) == 10 - newest[0]
    assert {step["event_id"] for _, _, step in again} <= {step["event_id"] for _, _, step in first[0]}


def test_what_is_stored_beside_an_event_is_deleted_with_its_day() -> None:
    run = LimitedRun(most=1)
    for run.today in range(2):
        for number in range(40):
            run.steps(f"t{run.today}-{number}", 1, user="ada")
    while run.fold.due(run.now_us // 1000):
        run.tick_now()
    for kind in (CLEAN, USED, PERSON):
        assert run.days(kind)[0] == 0
    assert run.days(SEEN).total() <= 1
    assert run.days(PERSON).total() <= 1


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 12), min_size=1, max_size=6), most=st.integers(1, 30), restart=st.integers(0, 6))
def test_the_newest_events_are_left_whatever_the_order_of_batches_and_restarts(
    counts: list[int], most: int, restart: int
) -> None:
    run = LimitedRun(most)
    for today, count in enumerate(counts):
        run.today = today
        assert len(run.steps(f"t{today}", count)) == count
        if today == restart:
            offsets, run = run._offsets, LimitedRun(most, run.state)
            run._offsets, run.today = offsets, today
        run.tick_now()
    days = run.days(SEEN)
    assert days.total() <= most
    partial = [day for day, count in enumerate(counts) if days[day] not in (0, count)]
    kept = [day for day in days if days[day]]
    assert len(partial) <= 1  # only the oldest day that is left lost a part
    assert not partial or partial == [min(kept)]
    reopened = DayLimit(run.state, COUNTED, most)  # type: ignore[arg-type]
    assert reopened._days[SEEN].total() == days.total()


def test_old_days_are_subtracted() -> None:
    run, before = LimitedRun(most=100, dedup_days=2), state_removed("event", "age")
    run.tick_now()
    run.steps("t", 5)
    run.today = 4
    run.steps("u", 3)
    run.tick_now()
    assert run.days(SEEN) == {4: 3}
    assert state_removed("event", "age") - before == 5


def test_entries_of_an_earlier_release_are_counted_once() -> None:
    run, before = LimitedRun(most=100), state_added("event")
    run.steps("t", 5)
    assert state_added("event") - before == 5
    for key in [key for key in run.state.content if key.startswith(day_limit._COUNT)]:
        del run.state.content[key]
    later = LimitedRun(3, run.state)
    assert later.limit is not None
    assert later.limit.is_exceeded
    later.tick_now()
    assert later.days(SEEN).total() <= 3


def test_one_tick_deletes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day_limit, "_DELETED_PER_TICK", 5)
    run = LimitedRun(most=1)
    run.steps("t", 30)
    run.tick_now()
    assert 20 <= run.days(SEEN).total() < 30
