"""Gateways agree on each trajectory's track; a trajectory keeps its first one while the canary lasts."""

from typing import Any

from stepstream.services.gateway.context.tree import AnsweredTrack, Trajectory
from stepstream.services.gateway.tracks import TrackChooser
from stepstream.topics.events import new_rollout
from stepstream.versions.rollouts import track_of


def rollout(canary: int | None, share: float) -> Any:
    return new_rollout(event_id="e", occurred_at_us=1, model="demo", canary_version=canary, canary_share=share)


def test_without_a_canary_all_are_stable() -> None:
    trajectory = Trajectory("t", "a", track=AnsweredTrack("demo", "canary", 4))
    for table in ({}, {"demo": rollout(None, 1.0)}):
        assert TrackChooser(table).choose(trajectory, "demo") == ("stable", None)


def test_a_canary_that_serves_nobody_gets_no_trajectory_not_even_one_that_it_served() -> None:
    chooser = TrackChooser({"demo": rollout(4, 0.0)})
    for track in (None, AnsweredTrack("demo", "stable", 4), AnsweredTrack("demo", "canary", 4)):
        assert chooser.choose(Trajectory("t", "a", track=track), "demo") == ("stable", 4)


def test_the_share_decides_by_hash_and_a_known_trajectory_keeps_its_track() -> None:
    table = {"demo": rollout(4, 0.2)}
    chooser = TrackChooser(table)
    trajectories = [Trajectory("t", str(number)) for number in range(1000)]
    tracks = [chooser.choose(each, "demo")[0] for each in trajectories]
    assert tracks == [track_of("t", each.id, "demo", 0.2) for each in trajectories]
    assert 150 < tracks.count("canary") < 250
    for each, track in zip(trajectories, tracks, strict=True):
        each.track = AnsweredTrack("demo", track, 4)
    table["demo"] = rollout(4, 1.0)
    assert [chooser.choose(each, "demo")[0] for each in trajectories] == tracks
    assert chooser.choose(Trajectory("t", "new"), "demo") == ("canary", 4)
    assert chooser.choose(Trajectory("t", "new"), "other") == ("stable", None)


def test_the_next_canary_takes_no_trajectory_of_the_one_before() -> None:
    chooser = TrackChooser({"demo": rollout(9, 1.0)})
    for track in ("stable", "canary"):
        known = Trajectory("t", "a", track=AnsweredTrack("demo", track, 8))
        assert chooser.choose(known, "demo") == ("stable", 9)


def test_the_track_of_a_call_of_another_model_decides_nothing() -> None:
    known = Trajectory("t", "a", track=AnsweredTrack("other", "stable", None))
    assert TrackChooser({"demo": rollout(9, 1.0)}).choose(known, "demo") == ("canary", 9)
