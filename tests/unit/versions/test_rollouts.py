"""Test which version serves which track, and which track serves which trajectory."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stepstream.topics.events import Checkpoint, Rollout, new_checkpoint, new_rollout, new_update_input
from stepstream.versions.rollouts import NOTHING_SERVED, ModelVersions, ServedVersions, served_versions, track_of

names = st.text(max_size=12)
shares = st.floats(0, 1)


def checkpoint(version: int, removed_at_us: int | None = None) -> Checkpoint:
    return new_checkpoint(
        event_id=f"c{version}",
        occurred_at_us=version,
        model="m",
        version=version,
        uri="file:///v",
        weights_sha256="",
        code_version="1",
        removed_at_us=removed_at_us,
    )


def rollout(**fields: Any) -> Rollout:
    return new_rollout(event_id="r", occurred_at_us=1, model="m", **fields)


def test_without_a_rollout_stable_is_the_newest_version_that_was_not_removed() -> None:
    assert served_versions([], None) == NOTHING_SERVED
    assert served_versions([checkpoint(2), checkpoint(4, removed_at_us=9), checkpoint(3)], None) == ServedVersions(
        3, newest=3
    )


def test_a_rollout_fixes_stable_and_names_the_canary() -> None:
    decision = rollout(stable_version=2, canary_version=5, canary_share=0.1, previous_stable_version=1)
    served = served_versions([checkpoint(n) for n in range(1, 7)], decision)
    assert (served.stable, served.canary, served.canary_share, served.newest) == (2, 5, 0.1, 6)
    assert not served.follows_newest
    assert (served.version_of("stable"), served.version_of("canary")) == (2, 5)
    assert served.in_use == {1, 2, 5}


def test_a_rollout_without_a_stable_version_follows_the_newest() -> None:
    served = served_versions([checkpoint(1), checkpoint(3)], rollout(pinned_versions=[1]))
    assert (served.stable, served.follows_newest, served.pinned) == (3, True, frozenset({1}))
    assert served.version_of("canary") == 3
    assert served.in_use == {1, 3}


def test_an_unpublished_version_in_a_rollout_stays_the_decision() -> None:
    assert served_versions([checkpoint(1)], rollout(stable_version=7)).stable == 7


def test_a_share_without_meaning_moves_no_traffic() -> None:
    for share, expected in ((math.nan, 0.0), (-1.0, 0.0), (7.0, 1.0)):
        assert served_versions([], rollout(canary_version=1, canary_share=share)).canary_share == expected
    assert served_versions([], rollout(canary_share=0.5)).canary_share == 0.0


@given(st.permutations([checkpoint(1), checkpoint(2), checkpoint(3), rollout(stable_version=2), rollout]))
def test_the_order_of_unrelated_events_does_not_matter(events: list[Any]) -> None:
    fold = ModelVersions()
    for event in events:
        if event is rollout:
            assert fold.served is fold.served  # asking between events changes nothing
        elif "version" in event:
            fold.apply_checkpoint(event["version"], event)
        else:
            fold.apply_rollout(event)
    assert fold.served == ServedVersions(2, newest=3, follows_newest=False)
    assert fold.rollout is not None


def test_a_deleted_key_counts_no_longer() -> None:
    fold = ModelVersions()
    fold.apply_checkpoint(1, checkpoint(1))
    fold.apply_checkpoint(2, checkpoint(2))
    fold.apply_rollout(rollout(stable_version=1))
    fold.apply_rollout(None)
    fold.apply_checkpoint(2, None)
    fold.apply_checkpoint(9, None)
    assert fold.served == ServedVersions(1, newest=1)
    assert list(fold.checkpoints) == [1]


def test_the_inputs_of_a_version_are_not_kept() -> None:
    fold = ModelVersions()
    event = checkpoint(1)
    event["inputs"] = [new_update_input(update=0, partitions=[0], offsets=[7])]
    fold.apply_checkpoint(1, event)
    assert fold.checkpoints[1]["inputs"] == event["inputs"] == []


@given(names, names, names, shares, shares)
def test_a_larger_share_only_adds_trajectories(tenant: str, trajectory: str, model: str, a: float, b: float) -> None:
    if track_of(tenant, trajectory, model, min(a, b)) == "canary":
        assert track_of(tenant, trajectory, model, max(a, b)) == "canary"


@given(names, names, names)
def test_the_whole_share_is_canary_and_no_share_is_stable(tenant: str, trajectory: str, model: str) -> None:
    assert track_of(tenant, trajectory, model, 1.0) == "canary"
    assert track_of(tenant, trajectory, model, 0.0) == "stable"


@given(st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.9]), st.integers(0, 1_000))
def test_the_share_is_honoured(share: float, seed: int) -> None:
    """The bound is five standard deviations of 4,000 draws."""
    count = sum(track_of("t", f"{seed}-{n}", "m", share) == "canary" for n in range(4_000))
    assert abs(count - 4_000 * share) < 5 * math.sqrt(4_000 * share * (1 - share)) + 1


def test_each_tenants_trajectories_of_the_same_names_have_tracks_of_their_own() -> None:
    """A model belongs to the operator: tenants share its canary, and each trajectory keeps its track."""
    names = [f"session-{n}" for n in range(200)]
    tracks = {tenant: [track_of(tenant, name, "demo", 0.5) for name in names] for tenant in ("ours", "theirs")}
    assert tracks == {tenant: [track_of(tenant, name, "demo", 0.5) for name in names] for tenant in tracks}
    assert tracks["ours"] != tracks["theirs"]
    assert all(60 < track.count("canary") < 140 for track in tracks.values())


def test_the_track_is_the_same_in_every_process_and_release() -> None:
    """A trajectory stays on its track while gateways are upgraded, so the function never changes."""
    tracks = "".join(track_of("acme", f"trajectory-{n}", "demo", 0.25)[0] for n in range(24))
    assert tracks == "scsccssssssssscsssssssss"


def test_fields_do_not_run_into_each_other() -> None:
    pairs = [("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd")]
    tracks = [[track_of(t + str(n), i, m, 0.5) for n in range(64)] for t, i, m in pairs]
    assert tracks[0] != tracks[1] != tracks[2]
