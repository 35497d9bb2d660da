"""Check the fold of checkpoint events to versions and lineages."""

import logging

import pytest
from sample_records import checkpoint

from stepstream.learner.lineage import (
    UnknownVersion,
    Versions,
    left_out,
    of_log,
    offsets_of,
    trained_positions,
    warn_without_training,
)
from stepstream.topics.events import (
    Rollout,
    new_checkpoint_file,
    new_partition_offset,
    new_rollout,
    new_update_input,
)


@pytest.fixture
def versions() -> Versions:
    folded = Versions()
    for version, parent in ((0, None), (1, 0), (2, 1), (3, None), (4, 3)):
        inputs = [new_update_input(update=version, partitions=[0, 1], offsets=[version, 10 + version])]
        folded.fold(checkpoint(version, parent_version=parent, inputs=[] if parent is None else inputs))
    folded.fold(checkpoint(9, model="other"))
    return folded


def test_newest_and_its_lineage(versions: Versions) -> None:
    newest = versions.newest("demo")
    assert newest is not None
    assert [each["version"] for each in versions.lineage(newest)] == [4, 3]
    assert [each["version"] for each in versions.lineage(versions.get("demo", 2))] == [2, 1, 0]
    assert versions.newest("unheard") is None


def test_a_later_event_for_a_version_replaces_the_earlier(versions: Versions) -> None:
    versions.fold(checkpoint(4, parent_version=3, track="canary"))
    assert versions.get("demo", 4)["track"] == "canary"


def test_an_unknown_version_is_named_with_the_known_ones(versions: Versions) -> None:
    with pytest.raises(UnknownVersion, match=r"demo@7 does not exist; known versions: 0-4"):
        versions.get("demo", 7)
    with pytest.raises(UnknownVersion, match=r"'unheard'.*known models: demo, other"):
        versions.get("unheard", 0)
    versions.fold(checkpoint(7, parent_version=6))
    with pytest.raises(UnknownVersion, match=r"demo@6 does not exist; known versions: 0-4, 7"):
        versions.lineage(versions.get("demo", 7))


def test_trained_places_from_where_reading_resumes(versions: Versions) -> None:
    line = versions.lineage(versions.get("demo", 2))
    assert trained_positions(line, {}) == {(0, 1), (1, 11), (0, 2), (1, 12)}
    assert trained_positions(line, {0: 2, 1: 13}) == {(0, 2)}


def test_positions_of_a_copied_version_are_of_another_log() -> None:
    topics = ("labeled-trajectories", "blue.labeled-trajectories", "")
    line = [checkpoint(number, input_topic=topic) for number, topic in enumerate(topics)]
    assert [version["version"] for version in of_log(line, "blue.")] == [1, 2]
    assert [version["version"] for version in of_log(line, "")] == [0, 2]


def test_offsets() -> None:
    places = [new_partition_offset(partition=0, offset=4), new_partition_offset(partition=2, offset=0)]
    assert offsets_of(checkpoint(resume_offsets=places)) == {0: 4, 2: 0}


def rollout(stable: int | None, *taken_back: int) -> Rollout:
    return new_rollout(
        event_id="r", occurred_at_us=1, model="demo", stable_version=stable, taken_back_versions=list(taken_back)
    )


def test_the_next_version_is_trained_from_the_newest_or_from_the_stable_one_after_harm(versions: Versions) -> None:
    def parent(decision: Rollout | None) -> int:
        found = versions.parent_of_next("demo", decision)
        assert found is not None
        return found["version"]

    assert versions.parent_of_next("unheard", None) is None
    assert parent(None) == 4
    assert parent(rollout(1)) == 4, "a fixed version is no judgement of the newest"
    assert parent(rollout(1, 2)) == 4, "another line"
    assert parent(rollout(3, 4)) == 3
    assert parent(rollout(2, 3)) == 2, "4 was trained from 3"
    assert parent(rollout(None, 4)) == 3
    assert parent(rollout(None, 3)) == 2, "no version of the line is left"
    assert parent(rollout(None, 0, 3)) == 4, "no version is left"
    versions.fold(checkpoint(5, parent_version=2))
    assert parent(rollout(2, 3)) == 5, "trained after that from the stable one"
    assert left_out(versions.lineage(versions.get("demo", 5)), 5) == {3, 4}


@pytest.mark.parametrize(
    ("parent", "path", "warns"),
    [
        (1, "weights/model.safetensors", True),
        (1, "training/optimizer.safetensors", False),
        (1, "optimizer.safetensors", False),
        (None, "weights/model.safetensors", False),
    ],
)
def test_a_trained_version_without_its_training_state_is_a_warning(
    parent: int | None, path: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = [new_checkpoint_file(path=path, sha256="", size_bytes=1, role="")]
    with caplog.at_level(logging.WARNING):
        warn_without_training(checkpoint(2, parent_version=parent, files=files))
    assert ("demo@2 has no training state any more" in caplog.text) == warns
