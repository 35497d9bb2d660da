"""Gateways agree on each trajectory's track; a trajectory keeps its first one while the canary lasts."""

from typing import Any

from stepstream.services.gateway.context.tree import Trajectory
from stepstream.services.gateway.tracks import TrackChooser
from stepstream.topics.events import new_rollout
from stepstream.versions.rollouts import track_of


def rollout(canary: int | None, share: float) -> Any:
    return new_rollout(event_id="e", occurred_at_us=1, model="demo", canary_version=canary, canary_share=share)


def test_without_a_canary_all_are_stable() -> None:
    trajectory = Trajectory("t", "a", track="canary")
    for table in ({}, {"demo": rollout(None, 1.0)}):
        assert TrackChooser(table).choose(trajectory, "demo") == "stable"


def test_a_canary_that_serves_nobody_gets_no_trajectory_not_even_one_that_remembers_an_earlier_canary() -> None:
    chooser = TrackChooser({"demo": rollout(4, 0.0)})
    for track in (None, "stable", "canary"):
        assert chooser.choose(Trajectory("t", "a", track=track), "demo") == "stable"


def test_the_share_decides_by_hash_and_a_known_trajectory_keeps_its_track() -> None:
    table = {"demo": rollout(4, 0.2)}
    chooser = TrackChooser(table)
    trajectories = [Trajectory("t", str(number)) for number in range(1000)]
    tracks = [chooser.choose(each, "demo") for each in trajectories]
    assert tracks == [track_of("t", each.id, "demo", 0.2) for each in trajectories]
    assert 150 < tracks.count("canary") < 250
    for each, track in zip(trajectories, tracks, strict=True):
        each.track = track
    table["demo"] = rollout(4, 1.0)
    assert [chooser.choose(each, "demo") for each in trajectories] == tracks
    assert chooser.choose(Trajectory("t", "new"), "demo") == "canary"
    assert chooser.choose(Trajectory("t", "new"), "other") == "stable"
