"""Workers join by a status, leave when they stop or fall silent, and stay while nobody can be heard."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.membership import RECENT_S, SILENT_INTERVALS, Membership
from stepstream.topics.events import new_served_version, new_worker_status

INTERVAL_S = 2.0
SILENT_S = SILENT_INTERVALS * INTERVAL_S
WALL_US = 1_700_000_000_000_000


class Topic:
    """Writes statuses at times of a clock that starts at 0."""

    def __init__(self) -> None:
        self.members = Membership(INTERVAL_S)

    def put(
        self, worker_id: str, at: float, *, behind_s: float = 0.0, written_s: float | None = None, **fields: Any
    ) -> bool:
        """Apply a status that arrives at `at`, from a clock `behind_s` behind; the broker's says `written_s`."""
        described: dict[str, Any] = {"url": f"http://{worker_id}/", "model": "demo", "version": 3, "state": "serving"}
        status = new_worker_status(
            event_id=f"{worker_id}{at - behind_s}",
            occurred_at_us=WALL_US + int((at - behind_s) * 1e6),
            worker_id=worker_id,
            engine="torch",
            **described | fields,
        )
        written_us = None if written_s is None else WALL_US + int(written_s * 1e6)
        return self.members.apply(worker_id, status, at, WALL_US + int(at * 1e6), written_us)

    def urls(self) -> list[str]:
        return sorted(worker.url for worker in self.members.workers())


def test_a_status_describes_its_worker() -> None:
    topic = Topic()
    tracks = [new_served_version(track="canary", version=4, served_name="demo-4")]
    assert topic.put("a", 0, capacity=16, tracks=tracks)
    (worker,) = topic.members.workers()
    assert (worker.url, worker.model, worker.capacity, worker.ready) == ("http://a", "demo", 16, True)
    assert worker.tracks == {"canary": "demo-4"}
    assert not topic.put("a", 2, capacity=16, tracks=tracks)
    assert topic.put("a", 4, version=None)
    assert not topic.members.workers()[0].ready


def test_a_stopping_worker_leaves_at_once_and_its_model_stays_known() -> None:
    topic = Topic()
    topic.put("a", 0)
    assert topic.put("a", 1, state="stopping")
    assert topic.urls() == []
    assert topic.members.models == {"demo"}


def test_a_silent_worker_leaves_while_others_are_heard() -> None:
    topic = Topic()
    for at in range(0, 8, 2):
        topic.put("a", at)
        if at < 2:
            topic.put("b", at)
    assert not topic.members.drop_silent(SILENT_S)
    assert topic.members.drop_silent(SILENT_S + 0.1)
    assert topic.urls() == ["http://a"]


def test_all_stay_while_none_is_heard_and_each_gets_time_afterwards() -> None:
    topic = Topic()
    topic.put("a", 0)
    topic.put("b", 0)
    assert not topic.members.drop_silent(1000)
    topic.put("a", 1000)
    assert not topic.members.drop_silent(1000 + SILENT_S)
    topic.put("a", 1006)
    assert topic.members.drop_silent(1006.5)
    assert topic.urls() == ["http://a"]


def test_a_worker_with_a_longer_interval_is_waited_for() -> None:
    topic = Topic()
    for at in (0, 10, 20):
        topic.put("slow", at)
    for at in range(0, 52, 2):
        topic.put("a", at)
    assert not topic.members.drop_silent(50)
    assert topic.members.drop_silent(51)


def test_clocks_may_differ_but_records_of_departed_workers_are_ignored() -> None:
    topic = Topic()
    assert topic.put("behind", 0, behind_s=RECENT_S - 10)
    assert topic.put("ahead", 0, behind_s=-10_000)
    assert not topic.put("departed", 0, behind_s=RECENT_S + 10)
    assert topic.urls() == ["http://ahead", "http://behind"]


def test_a_worker_whose_clock_is_far_behind_joins_with_its_second_status() -> None:
    topic = Topic()
    behind_s = 2 * RECENT_S
    assert not topic.put("a", 0, behind_s=behind_s)
    assert topic.put("a", 2.1, behind_s=behind_s)
    assert topic.urls() == ["http://a"]
    for at in (4, 6, 8):
        topic.put("a", at, behind_s=behind_s)
        topic.put("b", at)
        topic.members.drop_silent(at)
    assert len(topic.urls()) == 2


def test_the_broker_s_clock_counts_where_it_is_known() -> None:
    topic = Topic()
    assert topic.put("a", 0, written_s=0, behind_s=2 * RECENT_S)
    assert not topic.put("departed", 0, written_s=-2 * RECENT_S, behind_s=-RECENT_S)
    assert topic.urls() == ["http://a"]


def test_a_clock_that_is_set_back_makes_no_status_old() -> None:
    topic = Topic()
    topic.put("a", 0, written_s=0, behind_s=-3600, version=None)
    assert topic.put("a", 2, written_s=2)
    assert topic.members.workers()[0].ready


def test_two_statuses_that_the_broker_wrote_at_once_both_count() -> None:
    topic = Topic()
    topic.put("a", 1, written_s=1, version=None)
    assert topic.put("a", 1.001, written_s=1)
    assert topic.members.workers()[0].ready


def test_departed_workers_are_forgotten() -> None:
    topic = Topic()
    for number in range(100):
        topic.put(f"gone{number}", 0, behind_s=2 * RECENT_S)
        topic.put(f"ended{number}", 0, behind_s=2 * RECENT_S, state="stopping")
    assert len(topic.members._old) == 100
    topic.members.drop_silent(RECENT_S)
    assert len(topic.members._old) == 100
    topic.members.drop_silent(RECENT_S + 1)
    assert not topic.members._old


def test_a_worker_whose_clock_is_far_behind_leaves_when_it_stops() -> None:
    topic = Topic()
    for at in (0, 2.1):
        topic.put("a", at, behind_s=2 * RECENT_S)
    assert topic.put("a", 2.2, behind_s=2 * RECENT_S, state="stopping")
    assert topic.urls() == []
    assert not topic.members._old


def test_many_records_of_a_departed_worker_that_arrive_at_once_are_ignored() -> None:
    topic = Topic()
    for number in range(20):  # written every 2 seconds, and two of them within a millisecond
        topic.put("a", number / 100, behind_s=3 * RECENT_S - 2 * number)
        topic.put("a", number / 100 + 0.001, behind_s=3 * RECENT_S - 2 * number)
    assert topic.urls() == []


def test_records_read_again_change_nothing() -> None:
    topic = Topic()
    topic.put("a", 0)
    topic.put("a", 4, state="stopping")
    topic.put("b", 0, version=None)
    topic.put("b", 4)
    assert not topic.put("b", 5, behind_s=5, version=None)
    assert topic.members.workers()[0].ready


@pytest.mark.parametrize("url", ["", "a:1", "ftp://a", "http://", "http://[bad", "http://a:port", "http://a:99999"])
def test_a_worker_without_a_usable_address_is_ignored(url: str) -> None:
    topic = Topic()
    assert not topic.put("a", 0, url=url)
    assert topic.urls() == []


def test_the_worker_heard_last_has_an_address_that_two_announce() -> None:
    topic = Topic()
    topic.put("old", 0, url="http://x", model="before")
    topic.put("new", 1, url="http://x", model="after")
    assert [worker.model for worker in topic.members.workers()] == ["after"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 5), st.booleans()), max_size=40))
def test_the_newest_heard_worker_is_always_present(records: list[tuple[str, float, bool]]) -> None:
    topic, now, serving = Topic(), 0.0, set[str]()
    for name, pause, stops in records:
        now += pause
        topic.put(name, now, state="stopping" if stops else "serving")
        (serving.discard if stops else serving.add)(f"http://{name}")
        topic.members.drop_silent(now)
        assert set(topic.urls()) <= serving
        assert stops or f"http://{name}" in topic.urls()
