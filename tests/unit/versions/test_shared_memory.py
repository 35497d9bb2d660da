"""Check that a learner's versions in memory are the published bytes, bounded, and freed after every kind of end."""

import hashlib
import logging
import os
import signal
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from stepstream.crypto.signatures import create_key, load_key
from stepstream.topics.events import Checkpoint, new_checkpoint, new_checkpoint_file
from stepstream.versions.layout import VersionRejected
from stepstream.versions.shared_memory import NotShared, SharedVersionReader, SharedVersions
from stepstream.versions.signing import sign

SIZE = 1000
MODEL = "acme/model-2.5"
WEIGHTS_FILE = "model.safetensors"


def version_in(folder: Path, version: int) -> Checkpoint:
    """Write a version whose `weights/` has `SIZE` bytes, and return its event."""
    weights = folder / str(version) / "weights"
    weights.mkdir(parents=True)
    content = {"config.json": b"{}", WEIGHTS_FILE: bytes([version]) * (SIZE - 2)}
    files = []
    for name, value in content.items():
        (weights / name).write_bytes(value)
        digest = hashlib.sha256(value).hexdigest()
        files.append(new_checkpoint_file(path=f"weights/{name}", sha256=digest, size_bytes=len(value)))
    return new_checkpoint(
        event_id=f"0197-abcdef-{version}", occurred_at_us=0, model=MODEL, version=version,
        uri=weights.parent.as_uri(), weights_sha256="", files=files, code_version="",
    )  # fmt: skip


class Machine:
    """A memory file system, and the versions of a learner on it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "memory"
        self.root.mkdir()
        self.folder = folder

    @property
    def user(self) -> Path:
        return self.root / f"stepstream-{os.geteuid()}"

    def learner(self, limit: int = 2 * SIZE) -> SharedVersions:
        return SharedVersions(self.root, MODEL, limit)

    def put(self, shared: SharedVersions, version: int) -> Checkpoint:
        checkpoint = version_in(self.folder, version)
        assert shared.put(version, checkpoint["event_id"], self.weights(version)) == "shared"
        return checkpoint

    def weights(self, version: int) -> Path:
        return self.folder / str(version) / "weights"

    def folders(self) -> list[str]:
        return sorted(path.name.partition(".")[0] for path in self.user.glob("*.*") if path.is_dir())

    def image(self, version: int) -> Path:
        [found] = self.user.glob(f"learner-*/{version}-*")
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def reason(reader: SharedVersionReader, checkpoint: Checkpoint, keys: Sequence[str] = ()) -> str:
    with pytest.raises(NotShared) as missing:
        reader.take(checkpoint, keys)
    return missing.value.reason


def test_a_worker_maps_the_learner_s_bytes_without_the_store_and_keeps_them(machine: Machine) -> None:
    shared, reader = machine.learner(), SharedVersionReader(machine.root)
    checkpoint = machine.put(shared, 1)
    (machine.weights(1) / WEIGHTS_FILE).unlink()
    folder = reader.take(checkpoint)
    assert (folder / WEIGHTS_FILE).samefile(machine.image(1) / WEIGHTS_FILE)
    assert stat.S_IMODE(machine.user.stat().st_mode) == 0o700
    shared.close()
    assert (folder / WEIGHTS_FILE).read_bytes() == bytes([1]) * (SIZE - 2)
    assert machine.folders() == ["worker"]
    reader.keep([folder / "adapter"])
    assert folder.exists()
    reader.keep([])
    assert not folder.exists()
    reader.close()
    assert machine.folders() == []


def test_the_learner_keeps_its_newest_versions_within_the_limit(machine: Machine) -> None:
    shared, reader = machine.learner(), SharedVersionReader(machine.root)
    checkpoints = [machine.put(shared, version) for version in (1, 2, 3)]
    assert [path.name.partition("-")[0] for path in sorted(machine.user.glob("learner-*/[0-9]*"))] == ["2", "3"]
    assert reason(reader, checkpoints[0]) == "absent"
    assert reader.take(checkpoints[2]).parent.name == machine.image(3).name


def test_a_version_that_does_not_fit_is_left_to_its_files(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = version_in(machine.folder, 1)
    arguments = (1, checkpoint["event_id"], machine.weights(1))
    assert machine.learner(SIZE - 1).put(*arguments) == "too_large"
    assert machine.learner(0).put(*arguments) is None
    with patch("stepstream.versions.shared_memory.shutil.disk_usage", lambda _: SimpleNamespace(free=SIZE - 1)):
        assert machine.learner().put(*arguments) == "no_room"
    machine.root.rename(machine.root.with_name("gone"))
    assert machine.learner().put(*arguments) == "failed"
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3


def flip(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"\0")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda image: flip(image / WEIGHTS_FILE), id="changed"),
        pytest.param(lambda image: (image / WEIGHTS_FILE).unlink(), id="missing"),
        pytest.param(lambda image: (image / "more.safetensors").write_bytes(b""), id="unlisted"),
        pytest.param(lambda image: (image / "config.json").rename(image / "c"), id="renamed"),
        pytest.param(
            lambda image: (image / "config.json").unlink() or (image / "config.json").symlink_to("/etc/passwd"),
            id="link",
        ),
    ],
)
def test_bytes_that_are_not_the_event_s_are_not_taken(machine: Machine, damage: Callable[[Path], object]) -> None:
    shared, reader = machine.learner(), SharedVersionReader(machine.root)
    checkpoint = machine.put(shared, 1)
    damage(machine.image(1))
    assert reason(reader, checkpoint) == "differs"
    assert list(machine.user.glob("worker.*/[0-9]*")) == []


def test_signatures_and_removals_count_as_for_files(machine: Machine, tmp_path: Path) -> None:
    shared, reader = machine.learner(), SharedVersionReader(machine.root)
    checkpoint = machine.put(shared, 1)
    key = create_key(tmp_path / "key.pem")
    with pytest.raises(VersionRejected, match="no trusted key signed it"):
        reader.take(checkpoint, [key])
    with pytest.raises(VersionRejected, match="were removed"):
        reader.take(checkpoint | {"removed_at_us": 1, "removal_reason": "old"})
    delta = checkpoint | {"format": "delta", "base_version": 0}
    delta["signatures"] = [sign(delta, load_key(tmp_path / "key.pem"))]
    assert reason(reader, delta, [key]) == "unsigned", "a signature covers the delta, not the complete weights"


def test_a_folder_that_others_may_enter_is_not_trusted(machine: Machine) -> None:
    shared, reader = machine.learner(), SharedVersionReader(machine.root)
    checkpoint = machine.put(shared, 1)
    machine.user.chmod(0o750)
    assert reason(reader, checkpoint) == "unsafe"
    machine.user.chmod(0o700)
    moved = machine.user.rename(machine.root / "moved")
    machine.user.symlink_to(moved)
    assert reason(reader, checkpoint) == "unsafe"


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else(machine: Machine) -> None:
    ready, write = os.pipe()
    child = os.fork()
    if not child:
        shared = machine.learner()
        machine.put(shared, 1)
        os.write(write, b".")
        signal.pause()
    try:
        assert os.read(ready, 1) == b"."
        SharedVersionReader(machine.root)
        assert machine.folders() == ["learner-acme%2Fmodel-2"], "its process lives"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert machine.folders() == ["learner-acme%2Fmodel-2"]
    machine.learner(0)
    assert machine.folders() == []
