"""Check that retention keeps what is served, pinned, or needed by a kept version."""

from hypothesis import given
from hypothesis import strategies as st

from stepstream.topics.events import Checkpoint, new_checkpoint, new_checkpoint_file
from stepstream.versions.retention import (
    Removals,
    is_named,
    removal_events,
    removals_now,
    removals_of,
    without_training,
)
from stepstream.versions.rollouts import ServedVersions


def version(number: int, parent: int | None, base: int | None = None) -> Checkpoint:
    files = [
        new_checkpoint_file(path=f"{part}/x.safetensors", sha256="", size_bytes=1, role=part)
        for part in ("weights", "training")
    ]
    return new_checkpoint(
        event_id=f"e{number}", occurred_at_us=0, model="m", version=number, uri="", weights_sha256="", files=files,
        code_version="", parent_version=parent, format="full" if base is None else "delta", base_version=base,
    )  # fmt: skip


def line(count: int, every: int = 0) -> dict[int, Checkpoint]:
    """Return a lineage; with `every`, deltas between versions in full."""
    return {
        number: version(number, number - 1 if number else None, number - 1 if every and number % every else None)
        for number in range(count)
    }


def test_the_newest_the_root_and_what_is_in_use_are_kept() -> None:
    removals = removals_of(line(10), {4}, keep_versions=2, keep_training=3)
    assert removals == Removals(versions=(1, 2, 3, 5, 6, 7), training=(0, 4))
    assert removals_of(line(10), (), keep_versions=0, keep_training=0) == Removals()
    assert removals_of(line(3), (), keep_versions=1, keep_training=1) == Removals((), (0, 1)), "the parent is kept"
    assert removals_of({}, (), keep_versions=1, keep_training=1) == Removals()


def test_a_delta_s_bases_are_kept() -> None:
    assert removals_of(line(10, every=4), {6}, keep_versions=1, keep_training=0).versions == (1, 2, 3, 7)


def test_an_older_lineage_goes_but_for_what_is_pinned() -> None:
    checkpoints = line(4) | {4: version(4, None), 5: version(5, 4), 6: version(6, 5)}
    assert removals_of(checkpoints, (), keep_versions=2, keep_training=0).versions == (0, 1, 2, 3)
    assert removals_of(checkpoints, {2}, keep_versions=2, keep_training=0).versions == (1, 3)


def test_what_is_removed_already_is_left() -> None:
    checkpoints = line(6)
    checkpoints[2]["removed_at_us"] = 1
    checkpoints[0] = without_training(checkpoints[0])
    assert removals_of(checkpoints, {2}, keep_versions=1, keep_training=1) == Removals((1, 3), (4,))


def test_a_removal_s_event_is_the_version_s_own_without_its_files() -> None:
    checkpoints = line(3)
    removed, trimmed = removal_events(checkpoints, Removals(versions=(1,), training=(2,)), 7)
    assert (removed[0]["removed_at_us"], removed[0]["removal_reason"], removed[1]) == (7, "retention", "")
    assert removed[0]["event_id"] != checkpoints[1]["event_id"]
    assert [file["role"] for file in trimmed[0]["files"]] == ["weights"]
    assert trimmed == ({**checkpoints[2], "files": trimmed[0]["files"]}, "training"), "not published anew"
    assert checkpoints == line(3)


def test_a_training_state_in_the_old_layout_is_left() -> None:
    checkpoints = line(3)
    for file in checkpoints[1]["files"]:
        file["path"] = file["path"].rpartition("/")[2]
    assert removals_of(checkpoints, (), keep_versions=0, keep_training=1).training == (0,)


@given(st.integers(1, 30), st.integers(0, 6), st.sets(st.integers(0, 30)), st.integers(0, 5), st.integers(0, 5))
def test_what_is_kept_can_always_be_completed(count: int, every: int, used: set[int], keep: int, training: int) -> None:
    checkpoints = line(count, every)
    removals = removals_of(checkpoints, used, keep_versions=keep, keep_training=training)
    left = set(checkpoints) - set(removals.versions)
    assert used & set(checkpoints) <= left
    assert {0, count - 1} <= left
    for number in left:
        base = checkpoints[number]["base_version"]
        assert base is None or base in left
    assert not set(removals.training) & set(removals.versions)
    assert count - 1 not in removals.training
    after = {
        number: without_training(one) if number in removals.training else one for number, one in checkpoints.items()
    }
    for number in removals.versions:
        after[number]["removed_at_us"] = 1
    assert removals_of(after, used, keep_versions=keep, keep_training=training) == Removals(), "once is enough"


def test_a_version_that_training_may_continue_from_keeps_its_training_state() -> None:
    removals = removals_of(line(10), {4, 5}, keep_versions=2, keep_training=2, resumable={4})
    assert removals.training == (0, 5)


def test_what_a_track_a_rollback_or_a_pin_names_keeps_its_training_state() -> None:
    served = ServedVersions(6, previous_stable=4, pinned=frozenset({2}), newest=9, follows_newest=False)
    removals = removals_now(line(10), served, {1}, keep_versions=2, keep_training=2)
    assert removals == Removals(versions=(3, 5, 7), training=(0, 1)), "a worker's version needs no training state"


def test_files_that_another_present_version_names_stay() -> None:
    gone = version(1, None)
    gone["removed_at_us"] = 1
    whole, served = version(2, 1), without_training(version(3, 2))
    assert is_named(gone, "", [gone, whole])
    assert is_named(gone, "training", [gone, whole])
    assert is_named(gone, "", [gone, served])
    assert not is_named(gone, "training", [gone, served])
    whole["uri"] = "elsewhere"
    assert not is_named(gone, "", [gone, whole])
