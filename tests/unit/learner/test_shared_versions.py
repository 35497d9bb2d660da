"""Check that workers on the learner's machine take its versions from memory, in each form, bit for bit."""

import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from stack_fixtures import with_settings
from version_lineage import Lineage

from stepstream.config import Settings
from stepstream.core.object_store import remove
from stepstream.learner.provenance import configuration_of
from stepstream.services.inference import metrics
from stepstream.services.inference.version_source import VersionFiles, VersionSource
from stepstream.topics.events import Checkpoint
from stepstream.versions.shared_memory import SharedVersions

STORE = "memory://shared-versions"
LIMIT = 1 << 30


class Machine:
    """A learner that shares its versions, and a worker."""

    def __init__(self, folder: Path, *, serves_adapters: bool = True, **fields: Any) -> None:
        self.memory = folder / "memory"
        self.memory.mkdir()
        self.learner = Lineage(folder, **{"checkpoints": f"{STORE}/{folder.name}", **fields})
        self.shared = self.learner.shared = SharedVersions(self.memory, "m", LIMIT)
        settings = with_settings(Settings(), paths={"data": folder / "worker", "shared_memory": self.memory})
        self.source = VersionSource(settings, self.learner.versions.find, serves_adapters=serves_adapters)

    def serve(self, checkpoint: Checkpoint) -> VersionFiles:
        files = self.source.fetch(checkpoint)
        self.source.hold("stable", files)
        return files

    def images(self) -> list[str]:
        """Return the versions in memory by process and number."""
        found = self.memory.glob(f"stepstream-{os.geteuid()}/*.*/[0-9]*")
        return sorted(f"{path.parent.name.partition('.')[0]} {path.name.partition('-')[0]}" for path in found)


def count(way: str, reason: str = "") -> float:
    return metrics.FETCHES.labels(way, reason)._value.get()


@pytest.mark.parametrize("form", ["full", "delta"])
def test_swaps_come_from_memory_and_the_start_from_files(form: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version_format=form)
    shared, started = count("memory"), count("files", "start")
    assert machine.serve(machine.learner.publish()).weights.is_relative_to(tmp_path / "worker")
    assert (count("memory") - shared, count("files", "start") - started) == (0, 1)
    for number in (2, 3):
        checkpoint = machine.learner.publish()
        assert checkpoint["format"] == form
        remove(checkpoint["uri"])  # memory needs no store
        folder = machine.serve(checkpoint).weights
        assert folder.is_relative_to(machine.memory)
        exact = load_file(machine.learner.folder / "weights/model.safetensors")
        found = load_file(folder / "model.safetensors")
        assert all((found[name] == exact[name]).all() for name in exact | found)
        assert machine.images() == [f"learner-m {n}" for n in range(1, number + 1)] + [f"worker {number}"]
    assert count("memory") - shared == 2
    machine.shared.close()
    machine.source.close()
    assert machine.images() == []


def test_adapters_come_from_memory_beside_a_base_that_was_verified_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, version_format="lora", lora_rank=2, checkpoints=str(tmp_path / "published"))
    first = machine.serve(machine.learner.publish())
    (first.weights / "model.safetensors").unlink()  # it is in use, so it is not read again
    for number in (2, 3):
        files = machine.serve(machine.learner.publish())
        assert files.weights == first.weights
        assert files.adapter is not None
        assert files.adapter.is_relative_to(machine.memory)
        assert load_file(files.adapter / "adapter_model.safetensors")
        assert "worker 2" in machine.images(), f"vLLM may read recent adapters again, at {number}"


def test_adapters_that_a_track_serves_are_not_fetched_anew(tmp_path: Path) -> None:
    """Else an engine unloads them, under the requests of a canary that is promoted."""
    machine = Machine(tmp_path, version_format="lora", lora_rank=2, checkpoints=str(tmp_path / "published"))
    machine.serve(machine.learner.publish())
    canary = machine.learner.publish()
    files = machine.source.fetch(canary)
    machine.source.hold("canary", files)
    machine.shared.close()
    promoted = machine.serve(canary)
    assert promoted == files
    assert promoted.adapter is not None
    assert promoted.adapter.is_dir()


def test_an_engine_without_adapters_reads_files(tmp_path: Path) -> None:
    machine = Machine(tmp_path, serves_adapters=False, version_format="lora", lora_rank=2)
    machine.source.hold("stable", VersionFiles(tmp_path))
    before = count("files", "merged")
    assert machine.serve(machine.learner.publish()).weights.is_relative_to(tmp_path / "worker")
    assert count("files", "merged") - before == 1


def test_a_damaged_image_or_another_machine_s_version_is_read_from_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path, serves_adapters=False)
    machine.source.hold("stable", VersionFiles(tmp_path))
    checkpoint = machine.learner.publish()
    [image] = machine.memory.glob("stepstream-*/learner-m.*/1-*/model.safetensors")
    with image.open("r+b") as out:
        out.seek(-1, os.SEEK_END)
        out.write(b"\x7f")
    differs, absent = count("files", "differs"), count("files", "absent")
    assert machine.serve(checkpoint).weights.is_relative_to(tmp_path / "worker")
    assert "reading its files instead of memory" in caplog.text
    machine.shared.close()
    machine.serve(checkpoint)
    assert (count("files", "differs") - differs, count("files", "absent") - absent) == (1, 1)


def test_sharing_does_not_change_a_version_s_provenance(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    sharing = machine.learner.settings.learner.model_copy(update={"shared_memory_bytes": LIMIT})
    assert configuration_of(sharing) == configuration_of(machine.learner.settings.learner)
