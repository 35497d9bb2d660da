"""Test the learner process while a version is in publication: a slow disk, a full disk, stops in between."""

from collections.abc import Iterator
from pathlib import Path

import held_fsync
import pytest
from learner_lab import PER_VERSION, SIZE, UPDATES, LearnerLab
from stack_fixtures import with_settings
from waiting import wait_until

from stepstream.cli.models import rebuild
from stepstream.config import Settings
from stepstream.learner.model.checkpoint import folder_of, verify
from stepstream.learner.publish import publish_root

NAMES = [f"g{number}" for number in range(2 * PER_VERSION)]


class SlowDisk:
    """A file that holds back the learner's writes while it exists."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def hold(self) -> None:
        self.file.touch()

    def wait(self) -> None:
        """Wait until a write is held back."""
        wait_until(self.file.with_suffix(".held").exists)

    def release(self) -> None:
        self.file.unlink()
        self.file.with_suffix(".held").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> SlowDisk:
    return SlowDisk(tmp_path / "disk")


@pytest.fixture
def lab(registry_settings: Settings, tmp_path: Path, disk: SlowDisk) -> Iterator[LearnerLab]:
    made = LearnerLab(registry_settings, tmp_path, under=(held_fsync.__file__, str(disk.file)))
    publish_root(made.settings, made.base, made.model)
    yield made
    made.close()


def check_result(lab: LearnerLab, newest: int) -> None:
    """Check that each trajectory was trained once, and that nothing but the published versions is on the disk."""
    versions = [lab.versions().get(lab.model, number) for number in range(newest + 1)]
    for version in versions:
        verify(folder_of(version["uri"]), version["files"])
    folders = {folder_of(version["uri"]) for version in versions}
    assert set(folder_of(versions[0]["uri"]).parent.iterdir()) == folders
    records = lab.records("labeled-trajectories")
    trained = [records[position]["trajectory_id"] for position in lab.trained(newest)]
    assert sorted(trained) == sorted(f"{name}/{n}" for name in NAMES for n in range(SIZE))
    rebuilt = lab.cli(rebuild, f"{lab.model}@{newest}")
    assert rebuilt.exit_code == 0, rebuilt.output


def test_a_stop_during_a_slow_write_waits_for_the_version(lab: LearnerLab, disk: SlowDisk) -> None:
    lab.settings = lab.learner.settings = with_settings(lab.settings, learner={"stop_wait_s": 600.0})
    lab.learner.start()
    disk.hold()
    lab.produce(*NAMES)
    disk.wait()
    # Training goes on during the write, up to the next version.
    wait_until(lambda: lab.series()["stepstream_learner_updates_total"] == 2 * UPDATES)
    lab.learner.request_stop()
    assert lab.newest() == 0
    assert lab.learner.status is None
    disk.release()
    assert lab.learner.wait() == 0, lab.learner.log_text
    check_result(lab, 2)  # the second was ready


def test_a_stop_that_waited_too_long_publishes_nothing_and_a_restart_repeats_the_updates(
    lab: LearnerLab, disk: SlowDisk
) -> None:
    lab.settings = lab.learner.settings = with_settings(lab.settings, learner={"stop_wait_s": 0.2})
    lab.learner.start()
    disk.hold()
    lab.produce(*NAMES[:PER_VERSION])
    disk.wait()
    assert lab.learner.stop() == 1
    last = lab.learner.log_text.splitlines()[-1]
    assert f"stopped before {lab.model}@1 was known to be durable" in last
    assert "raise learner.stop_wait_s" in last
    assert lab.newest() == 0
    assert lab.own_records("training-decisions") == [], "they would name a version that does not exist"
    root = folder_of(lab.versions().get(lab.model, 0)["uri"])
    left = {path.suffix or "folder" for path in root.parent.iterdir() if path != root}
    assert ".writing" in left

    disk.release()
    lab.produce(*NAMES[PER_VERSION:])
    lab.learner.start()
    lab.wait_for(2)
    assert lab.learner.stop() == 0
    check_result(lab, 2)


def test_training_goes_on_while_the_disk_is_full_and_the_version_follows(lab: LearnerLab) -> None:
    lab.learner.start()
    lab.learner.limit_file_size(500_000)  # half of the weights
    lab.produce(*NAMES)
    wait_until(lambda: lab.series()["stepstream_learner_updates_total"] == 2 * UPDATES)
    wait_until(lambda: lab.series()["stepstream_learner_publication_faults_total"] >= 2)
    assert lab.series()["stepstream_learner_publication_failing"] == 1
    assert f"{lab.model}@1 cannot be written" in lab.learner.log_text
    assert lab.learner.status is None
    assert lab.newest() == 0
    lab.learner.limit_file_size(-1)
    lab.wait_for(2)
    wait_until(lambda: lab.series()["stepstream_learner_publication_failing"] == 0)
    assert lab.learner.stop() == 0
    check_result(lab, 2)


def test_a_stop_while_the_disk_is_full_ends_at_once(lab: LearnerLab) -> None:
    lab.learner.start()
    lab.learner.limit_file_size(500_000)
    lab.produce(*NAMES[:PER_VERSION])
    wait_until(lambda: lab.series()["stepstream_learner_publication_faults_total"] >= 1)
    assert lab.learner.stop() == 1
    assert f"{lab.model}@1 cannot be written and is not published" in lab.learner.log_text.splitlines()[-1]
    lab.produce(*NAMES[PER_VERSION:])
    lab.learner.start()
    lab.wait_for(2)
    assert lab.learner.stop() == 0
    check_result(lab, 2)
