"""A call goes to its trajectory's worker unless that is away or overloaded, else to the least loaded one."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.errors import Overloaded, UnknownModel
from stepstream.services.gateway.worker_pool import (
    LONGEST_PAUSE_S,
    OVERLOAD_SLACK,
    AnnouncedWorker,
    Route,
    Worker,
    WorkerPool,
)

OVERLOAD = 1.5
NOW = 100.0
ANY = Route()


def pool_of(*urls: str, max_queue: int = 512) -> WorkerPool:
    return WorkerPool(urls, max_queue, OVERLOAD)


def announced(url: str, model: str = "demo", **fields: object) -> AnnouncedWorker:
    return AnnouncedWorker(**{"url": url, "model": model, "state": "serving", "ready": True} | fields)  # type: ignore[arg-type]


def url_of(worker: Worker | None) -> str | None:
    return worker.url if worker is not None else None


def test_the_worker_with_the_fewest_calls_is_chosen_and_equal_ones_in_turn() -> None:
    pool = pool_of("http://a", "http://b/")
    chosen = []
    for _ in range(4):
        worker = pool.choose(0.0, ANY)
        assert worker is not None
        worker.in_flight += 1
        chosen.append(worker.url)
    assert chosen == ["http://a", "http://b"] * 2
    pool.upstreams[1].in_flight = 0
    assert pool.choose(0.0, ANY) is pool.upstreams[1]


def test_load_is_relative_to_capacity_and_counts_other_gateways() -> None:
    pool = pool_of("http://static")
    pool.announce([announced("http://a", capacity=100), announced("http://b", capacity=10)], [])
    a, b = pool.upstreams
    a.in_flight, b.in_flight = 9, 1
    assert pool.choose(NOW, ANY) is a
    pool.note_load("http://a", 30)
    assert a.load == 30
    assert pool.choose(NOW, ANY) is b


def test_a_failed_worker_is_skipped_until_its_pause_ends() -> None:
    pool = pool_of("http://a", "http://b")
    a, b = pool.upstreams
    a.failed("refused", 10.0)
    assert pool.choose(10.0, ANY) is b
    b.failed("refused", 10.0)
    assert pool.choose(10.01, ANY) is None
    assert 10.0 < pool.next_try(10.01, ANY) <= 10.1
    assert pool.choose(pool.next_try(10.01, ANY), ANY) is not None
    assert "http://a: refused" in pool.faults(ANY)
    a.succeeded()
    assert pool.choose(10.01, ANY) is a


def test_pauses_grow_to_a_limit_and_concurrent_failures_count_once() -> None:
    (a,) = pool_of("http://a").upstreams
    for _ in range(64):
        a.failed("cut", 5.0)
    first = a.paused_until - 5.0
    pauses = []
    for _ in range(10):
        now = a.paused_until
        a.failed("refused", now)
        pauses.append(a.paused_until - now)
    assert first < pauses[0] < pauses[1]
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S)


def test_announced_workers_replace_those_of_the_settings_and_take_over_their_load() -> None:
    pool = pool_of("http://a", "http://unused")
    (a, _) = pool.upstreams
    a.in_flight = 3
    pool.announce([announced("http://a"), announced("http://b", "other")], [])
    assert [worker.url for worker in pool.upstreams] == ["http://a", "http://b"]
    assert pool.upstreams[0] is a
    assert url_of(pool.choose(NOW, Route("other"))) == "http://b"


def test_a_returning_worker_keeps_the_count_of_its_calls() -> None:
    pool = pool_of("http://static")
    pool.announce([announced("http://a")], [])
    pool.upstreams[0].in_flight = 2
    pool.announce([], ["demo"])
    assert pool.upstreams == []
    pool.announce([announced("http://a")], [])
    assert pool.upstreams[0].in_flight == 2


def test_an_unknown_model_is_an_error_that_names_the_served_ones() -> None:
    pool = pool_of("http://a")
    pool.admit("anything", NOW)
    pool.announce([announced("http://a"), announced("http://b", "other")], ["gone"])
    pool.admit("other", NOW)
    pool.admit("", NOW)
    pool.admit("gone", NOW)  # it may return: calls wait for it
    with pytest.raises(UnknownModel, match=r"'demi'; served models: demo, other$"):
        pool.admit("demi", NOW)
    assert pool.choose(NOW, Route("gone")) is None
    assert pool.faults(Route("gone")) == "none is alive; served models: demo, other"


def test_a_worker_without_a_version_gets_no_calls() -> None:
    pool = pool_of("http://a")
    pool.announce([announced("http://a", ready=False, state="starting")], [])
    pool.admit("demo", NOW)
    assert pool.choose(NOW, Route("demo")) is None
    assert pool.next_try(NOW, Route("demo")) > NOW
    assert pool.faults(Route("demo")) == "http://a: serves no version yet (starting)"


def test_calls_are_rejected_once_every_worker_of_the_model_is_full() -> None:
    pool = pool_of("http://a", max_queue=2)
    pool.announce([announced("http://a", capacity=4), announced("http://b", capacity=4)], [])
    a, b = pool.upstreams
    a.in_flight = 6
    pool.admit("demo", NOW)
    assert pool.choose(NOW, Route("demo", "t", "http://a")) is b
    b.in_flight = 5
    pool.note_load("http://b", 6)
    with pytest.raises(Overloaded, match=r"all 2 workers of the model 'demo' are full: 12 requests of at most 12"):
        pool.admit("demo", NOW)
    a.failed("refused", NOW)
    with pytest.raises(Overloaded, match="all 1 workers"):
        pool.admit("demo", NOW)
    b.failed("refused", NOW)
    pool.admit("demo", NOW)  # nothing is known about their queues: the call is retried


def test_trajectories_stay_at_their_worker_until_it_is_overloaded() -> None:
    pool = pool_of("http://a", "http://b")
    a, b = pool.upstreams
    route = Route("demo", "t", "http://a")
    a.in_flight = 10
    assert pool.choose(NOW, route) is a
    a.in_flight = 100
    assert pool.choose(NOW, route) is b
    b.in_flight = 90
    assert pool.choose(NOW, route) is a
    a.failed("refused", NOW)
    assert pool.choose(NOW, route) is b


def test_two_idle_gateways_choose_the_same_worker_for_a_trajectory() -> None:
    pools = pool_of("http://a", "http://b", "http://c"), pool_of("http://c", "http://a", "http://b")
    chosen = [[url_of(pool.choose(NOW, Route("demo", f"t{i}"))) for i in range(300)] for pool in pools]
    assert chosen[0] == chosen[1]
    assert all(chosen[0].count(url) > 60 for url in ("http://a", "http://b", "http://c"))


def test_a_track_has_its_own_workers_and_name() -> None:
    pool = pool_of("http://static")
    assert pool.has_track("demo", "canary")  # nothing is known of the versions of a worker without a status
    both = announced("http://a", tracks={"stable": "demo", "canary": "demo-4"})
    pool.announce([both, announced("http://b", tracks={"stable": ""})], [])
    a, b = pool.upstreams
    a.in_flight = 50
    assert pool.choose(NOW, Route("demo")) is b
    assert pool.choose(NOW, Route("demo", track="canary")) is a
    assert [a.served_name(Route("demo", track=track)) for track in ("stable", "canary")] == ["", "demo-4"]
    pool.announce([announced("http://b", tracks={"stable": ""})], [])
    assert not pool.has_track("demo", "canary")
    assert pool.faults(Route("demo", track="canary")) == "http://b: does not serve the track canary"


@dataclasses.dataclass
class Case:
    """State of one worker."""

    in_flight: int
    elsewhere: int
    capacity: int
    paused: bool
    ready: bool
    canary: bool


CASES = st.lists(
    st.builds(
        Case,
        st.integers(0, 60),
        st.integers(0, 60),
        st.sampled_from([0, 4, 16, 64]),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(cases=CASES, preferred=st.integers(0, 6), track=st.sampled_from(["stable", "canary"]))
def test_only_available_workers_are_chosen_within_the_bound(cases: list[Case], preferred: int, track: str) -> None:
    pool = pool_of("http://static", max_queue=32)
    tracks = {True: {"stable": "", "canary": ""}, False: {"stable": ""}}
    pool.announce(
        [
            announced(f"http://{i}", capacity=case.capacity, ready=case.ready, tracks=tracks[case.canary])
            for i, case in enumerate(cases)
        ],
        [],
    )
    for worker, case in zip(pool.upstreams, cases, strict=True):
        worker.in_flight, worker.elsewhere = case.in_flight, case.elsewhere
        worker.paused_until = NOW + 1 if case.paused else 0.0
    available = {
        f"http://{i}": worker
        for i, (worker, case) in enumerate(zip(pool.upstreams, cases, strict=True))
        if case.ready and not case.paused and (case.canary or track == "stable")
    }
    route = Route("demo", "t", f"http://{preferred}", track)  # type: ignore[arg-type]
    chosen = pool.choose(NOW, route)
    if not available:
        assert chosen is None
        return
    assert chosen is available[chosen.url]  # type: ignore[union-attr]
    with_room = [worker for worker in available.values() if worker.load < worker.capacity + 32]
    least = min(worker.load / worker.weight for worker in with_room or available.values())
    if chosen.load / chosen.weight > least:
        load, weight = (sum(getattr(each, name) for each in available.values()) for name in ("load", "weight"))
        assert chosen.url == route.preferred
        assert chosen.load + 1 <= OVERLOAD * (load + 1) * chosen.weight / weight + OVERLOAD_SLACK
    assert chosen in with_room or not with_room
