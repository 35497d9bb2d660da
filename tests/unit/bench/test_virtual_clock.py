"""Test the benches' virtual clock, and processes that share cores."""

import math

import pytest
from asynchrony.clock import Clock, Cores, Server


def run(clock: Clock) -> None:
    assert not clock.run(lambda: False, 1e9)


def test_events_run_in_order_of_time_then_of_scheduling() -> None:
    clock, seen = Clock(), []
    for name, seconds in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        clock.after(seconds, lambda name=name: seen.append((name, clock.now)))  # type: ignore[misc]
    run(clock)
    assert seen == [("a", 1.0), ("b", 1.0), ("c", 2.0)]


def test_a_run_ends_when_it_is_over_or_at_its_deadline() -> None:
    clock, seen = Clock(), []
    for second in range(5):
        clock.after(second, lambda second=second: seen.append(second))  # type: ignore[misc]
    assert clock.run(lambda: 2 in seen, 100.0)
    assert seen == [0, 1, 2]
    assert not clock.run(lambda: False, 3.5)
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("cores", "ends"),
    [
        (math.inf, {"short": 1.0, "middle": 2.0, "long": 3.0}),
        # Three at two thirds of a core each until 1.5 s, then the other two on a core each.
        (2.0, {"short": 1.5, "middle": 2.5, "long": 3.5}),
        (1.0, {"short": 3.0, "middle": 5.0, "long": 6.0}),
    ],
)
def test_processes_share_the_cores_evenly(cores: float, ends: dict[str, float]) -> None:
    clock = Clock()
    shared, seen = Cores(clock, cores), dict[str, float]()
    for name, seconds in (("long", 3.0), ("short", 1.0), ("middle", 2.0)):
        shared.work(seconds, lambda name=name: seen.__setitem__(name, clock.now))  # type: ignore[misc]
    run(clock)
    assert seen == pytest.approx(ends)
    assert shared.busy_s == pytest.approx(6.0)


def test_later_work_slows_running_work() -> None:
    clock = Clock()
    shared, seen = Cores(clock, 1.0), dict[str, float]()
    shared.work(2.0, lambda: seen.__setitem__("first", clock.now))
    clock.after(1.0, lambda: shared.work(0.5, lambda: seen.__setitem__("second", clock.now)))
    run(clock)
    assert seen == pytest.approx({"second": 2.0, "first": 2.5})


def test_a_server_does_one_work_item_at_a_time() -> None:
    clock = Clock()
    server, seen = Server(Cores(clock, math.inf)), []
    for name in "abc":
        server.do(1.0, lambda name=name: seen.append((name, clock.now)))  # type: ignore[misc]
    run(clock)
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    assert server.busy_s == 3.0
