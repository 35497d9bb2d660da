"""Test which update each event gives, and that the state does not depend on the order of topics."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stepstream.topics.events import (
    Checkpoint,
    Rollout,
    Track,
    WorkerStatus,
    new_checkpoint,
    new_rollout,
    new_served_version,
    new_worker_status,
)
from stepstream.versions.updates import ModelUpdate, ModelUpdates


def checkpoint(version: int, **fields: Any) -> Checkpoint:
    values: dict[str, Any] = {"event_id": f"c{version}", "occurred_at_us": version, "model": "m"}
    return new_checkpoint(version=version, uri="file:///v", weights_sha256="", code_version="1", **(values | fields))


def rollout(number: int, action: str, **fields: Any) -> Rollout:
    return new_rollout(event_id=f"r{number}", occurred_at_us=number, model="m", action=action, **fields)


def worker(tracks: dict[Track, int], **fields: Any) -> WorkerStatus:
    values: dict[str, Any] = {"event_id": "w", "occurred_at_us": 1_000_000, "model": "m", "state": "serving"}
    values["worker_id"] = "w"
    return new_worker_status(
        engine="torch",
        url="http://127.0.0.1:1",
        tracks=[new_served_version(track=track, version=version) for track, version in tracks.items()],
        **(values | fields),
    )


def test_each_change_of_a_version_is_one_update() -> None:
    updates = ModelUpdates()
    [published] = updates.checkpoint("m@1", checkpoint(1))
    assert (published.change, published.version, published.served.stable) == ("published", 1, 1)
    assert list(updates.checkpoint("m@1", checkpoint(1))) == []
    [again] = updates.checkpoint("m@1", checkpoint(1, event_id="other"))
    assert again.change == "published"
    list(updates.checkpoint("m@2", checkpoint(2)))
    gone = checkpoint(1, event_id="gone", removed_at_us=9, removal_reason="older than the last 3")
    [removed] = updates.checkpoint("m@1", gone)
    assert (removed.change, removed.version, removed.reason, removed.occurred_at_us) == (
        "removed",
        1,
        "older than the last 3",
        9,
    )
    assert list(updates.checkpoint("m@1", None)) == []
    assert [one.change for one in updates.checkpoint("m@2", None)] == ["removed"]
    assert list(updates.checkpoint("not a version", None)) == []


def test_each_decision_is_one_update_with_the_version_it_is_about() -> None:
    updates = ModelUpdates()
    for version in (1, 2, 3):
        list(updates.checkpoint(f"m@{version}", checkpoint(version)))
    decisions: list[tuple[Rollout, int | None]] = [
        (rollout(1, "promote", stable_version=1, reason="calm", author="ann"), 1),
        (rollout(2, "canary", stable_version=1, canary_version=2, canary_share=0.1), 2),
        (rollout(3, "canary", stable_version=1), None),
        (rollout(4, "pin", stable_version=1, pinned_versions=[3]), 3),
        (rollout(5, "unpin", stable_version=1), 3),
        (rollout(6, "rollback", stable_version=2), 2),
        (rollout(7, "follow"), 3),
        (rollout(8, "later than this code"), 3),
    ]
    for record, about in decisions:
        [update] = updates.rollout("m", record)
        assert update.change == (record["action"] if record["event_id"] != "r8" else "decided")
        assert update.version == about
        assert (update.reason, update.author) == (record["reason"], record["author"])
        assert list(updates.rollout("m", record)) == []
    [update] = updates.rollout("m", None)
    assert (update.change, update.version) == ("follow", 3)
    assert list(updates.rollout("m", None)) == []


def test_a_worker_is_an_update_when_it_changes() -> None:
    updates = ModelUpdates()
    [first] = updates.worker("w", worker({"stable": 1}))
    assert (first.worker, first.state, first.tracks) == ("w", "serving", {"stable": 1})
    assert list(updates.worker("w", worker({"stable": 1}, event_id="later", occurred_at_us=2_000_000))) == []
    [second] = updates.worker("w", worker({"stable": 1, "canary": 2}))
    assert second.tracks == {"stable": 1, "canary": 2}
    [third] = updates.worker("w", worker({"stable": 1}, state="refused", reason="digest"))
    assert third.reason == "digest"
    assert list(updates.worker("w", None)) == []


def test_the_state_has_each_model_and_each_live_worker() -> None:
    updates = ModelUpdates()
    list(updates.checkpoint("m@1", checkpoint(1)))
    list(updates.worker("w", worker({"stable": 1})))
    list(updates.worker("silent", worker({"stable": 1}, occurred_at_us=0)))
    state = list(updates.state(1_500_000, 1.0))
    assert [(one.change, one.worker) for one in state] == [("state", ""), ("worker", "w")]


def test_the_broker_s_clock_says_which_worker_is_live() -> None:
    updates = ModelUpdates()
    list(updates.worker("behind", worker({"stable": 1}, worker_id="behind", occurred_at_us=0), 1_000_000))
    list(updates.worker("ahead", worker({"stable": 1}, worker_id="ahead", occurred_at_us=9_000_000), 0))
    assert [one.worker for one in updates.state(1_500_000, 1.0)] == ["behind"]


def test_another_model_is_left_out() -> None:
    updates = ModelUpdates("m")
    assert list(updates.checkpoint("o@1", checkpoint(1, model="o"))) == []
    assert list(updates.rollout("o", rollout(1, "promote") | {"model": "o"})) == []
    assert list(updates.worker("w", worker({"stable": 1}, model="o"))) == []
    assert list(updates.state(0, 1.0)) == []


def test_an_update_s_json_leaves_out_what_says_nothing() -> None:
    [update] = ModelUpdates().checkpoint("m@1", checkpoint(1))
    assert update.fields() == {
        "change": "published",
        "model": "m",
        "version": 1,
        "stable": 1,
        "newest": 1,
        "follows_newest": True,
        "occurred_at_us": 1,
    }


EVENTS = [
    ("checkpoint", "m@1", checkpoint(1)),
    ("checkpoint", "m@2", checkpoint(2)),
    ("rollout", "m", rollout(1, "promote", stable_version=1)),
    ("worker", "w", worker({"stable": 1})),
]


@given(st.permutations(EVENTS))
def test_the_state_does_not_depend_on_the_order_of_the_topics(events: list[tuple[str, str, Any]]) -> None:
    def state(in_order: list[tuple[str, str, Any]]) -> list[ModelUpdate]:
        updates = ModelUpdates()
        for kind, key, record in in_order:
            list(getattr(updates, kind)(key, record))
        return list(updates.state(1_500_000, 1.0))

    assert state(events) == state(EVENTS)
