"""Calls go to the healthy worker with the fewest in flight; one that fails is left alone for a while."""

import pytest

from stepstream.services.gateway.routing import LONGEST_PAUSE_S, Pool


def test_the_fewest_in_flight_and_in_turn_among_equals() -> None:
    pool = Pool(["http://a", "http://b/"])
    chosen = []
    for _ in range(4):
        upstream = pool.choose(0.0)
        assert upstream is not None
        upstream.in_flight += 1
        chosen.append(upstream.url)
    assert chosen == ["http://a", "http://b"] * 2
    pool.upstreams[1].in_flight = 0
    assert pool.choose(0.0) is pool.upstreams[1]


def test_a_failed_one_is_passed_over_until_its_pause_ends() -> None:
    pool = Pool(["http://a", "http://b"])
    a, b = pool.upstreams
    a.failed("refused", 10.0)
    assert pool.choose(10.0) is b
    b.failed("refused", 10.0)
    assert pool.choose(10.01) is None
    assert 10.0 < pool.next_try() <= 10.1
    assert pool.choose(pool.next_try()) is not None
    assert "http://a: refused" in pool.faults()
    a.succeeded()
    assert pool.choose(10.01) is a


def test_pauses_grow_to_a_limit_and_failures_of_one_outage_count_once() -> None:
    pool = Pool(["http://a"])
    (a,) = pool.upstreams
    for _ in range(64):
        a.failed("cut", 5.0)  # calls that were in flight together
    first = a.paused_until - 5.0
    pauses = []
    for _ in range(10):
        now = a.paused_until
        a.failed("refused", now)
        pauses.append(a.paused_until - now)
    assert first < pauses[0] < pauses[1]
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S)
