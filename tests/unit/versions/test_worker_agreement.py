"""Test the comparison of workers with the log."""

from typing import Any

from stepstream.topics.events import Track, WorkerStatus, new_served_version, new_worker_status
from stepstream.versions.rollouts import ServedVersions
from stepstream.versions.worker_agreement import disagreements, live_workers, loaded_versions, served_tracks

SERVED = ServedVersions(3, canary=5, canary_share=0.1)


def unknown(_worker_id: str) -> None:
    """Tell no time by the broker's clock."""


def worker(name: str, tracks: dict[Track, int], **fields: Any) -> WorkerStatus:
    values: dict[str, Any] = {"model": "m", "occurred_at_us": 10_000_000, "version": tracks.get("stable")}
    return new_worker_status(
        event_id=name,
        worker_id=name,
        engine="torch",
        url="http://127.0.0.1:1",
        tracks=[new_served_version(track=track, version=version) for track, version in tracks.items()],
        **(values | fields),
    )


def test_silent_stopping_and_other_models_workers_are_not_live() -> None:
    statuses = [
        worker("b", {"stable": 3}),
        worker("a", {"stable": 3}, state="refused"),
        worker("silent", {"stable": 3}, occurred_at_us=3_999_999),
        worker("stopping", {"stable": 3}, state="stopping"),
        worker("other", {"stable": 3}, model="another"),
    ]
    assert [one["worker_id"] for one in live_workers(statuses, "m", 10_000_000, 6.0, unknown)] == ["a", "b"]


def test_the_broker_s_clock_says_which_worker_is_live() -> None:
    statuses = [
        worker("behind", {"stable": 3}, occurred_at_us=0),
        worker("ahead", {"stable": 2}, occurred_at_us=3600_000_000),
        worker("unknown", {"stable": 1}),
    ]
    written_us = {"behind": 10_000_000, "ahead": 1_000_000}
    live = live_workers(statuses, "m", 11_000_000, 6.0, written_us.get)
    assert [one["worker_id"] for one in live] == ["behind", "unknown"]
    now_us = 300_000_000
    written_us |= {"behind": now_us - 100_000_000, "ahead": now_us - 200_000_000}
    assert loaded_versions(statuses, "m", now_us, 2.0, written_us=written_us.get) == {3}


def test_a_worker_of_before_tracks_serves_stable() -> None:
    assert served_tracks(worker("w", {}, version=3)) == [new_served_version(track="stable", version=3)]
    assert served_tracks(worker("w", {})) == []


def test_workers_that_serve_the_log_agree() -> None:
    assert disagreements([worker("a", {"stable": 3}), worker("b", {"canary": 5})], SERVED) == {}
    assert disagreements([worker("a", {"stable": 3, "canary": 3})], ServedVersions(3)) == {}


def test_each_difference_names_its_worker() -> None:
    workers = [
        worker("a", {"stable": 2, "canary": 5}, reason="m@3: digest differs"),
        worker("b", {"stable": 3, "canary": 4}),
        worker("c", {}),
    ]
    assert disagreements(workers, SERVED) == {
        "a": "stable is 2, not 3 (m@3: digest differs)",
        "b": "canary is 4, not 5",
        "c": "serves no version",
    }


def test_a_canary_without_a_worker_is_named() -> None:
    assert disagreements([worker("a", {"stable": 3})], SERVED) == {"canary": "no worker serves version 5"}


def test_a_worker_with_a_longer_interval_than_the_reader_s_still_has_its_versions() -> None:
    now_us = 1_000_000_000
    statuses = [
        worker("slow", {"stable": 3, "canary": 5}, occurred_at_us=now_us - 100_000_000),
        worker("gone", {"stable": 1}, occurred_at_us=now_us - 181_000_000),
        worker("stopping", {"stable": 2}, occurred_at_us=now_us, state="stopping"),
    ]
    assert loaded_versions(statuses, "m", now_us, 2.0) == {3, 5}
    assert loaded_versions(statuses, "m", now_us, 70.0) == {1, 3, 5}


def test_a_worker_that_was_heard_counts_whatever_its_clock_says() -> None:
    statuses = [
        worker("behind", {"stable": 1}, occurred_at_us=0),
        worker("stopping", {"stable": 2}, occurred_at_us=0, state="stopping"),
        worker("other", {"stable": 3}, occurred_at_us=0, model="another"),
        worker("gone", {"stable": 4}, occurred_at_us=0),
    ]
    now_us = 3600 * 1_000_000
    assert loaded_versions(statuses, "m", now_us, 2.0, {"behind", "stopping", "other"}) == {1}
