"""Test how a worker gets a version's files: whole, as adapters beside their base, refused with a reason."""

from pathlib import Path
from unittest.mock import patch

import pytest
from stack_fixtures import with_settings

from stepstream.config import Settings
from stepstream.services.inference import version_source
from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.version_source import VersionFiles, VersionSource
from stepstream.topics.events import Checkpoint, new_checkpoint
from stepstream.versions.layout import NotStored, VersionRejected


def checkpoint(version: int, **fields: str | int) -> Checkpoint:
    return new_checkpoint(
        event_id=f"c{version}",
        occurred_at_us=version,
        model="m",
        version=version,
        uri="file:///nowhere",
        weights_sha256="",
        code_version="1",
        **fields,  # type: ignore[arg-type]
    )


def source(tmp_path: Path, *, serves_adapters: bool, limit: int = 0) -> VersionSource:
    settings = with_settings(Settings(), paths={"data": tmp_path}, inference={"version_cache_bytes": limit})
    return VersionSource(settings, lambda _model, _version: None, serves_adapters=serves_adapters)


def folder(tmp_path: Path, name: str) -> Path:
    """Make a folder of the cache with a file of 10 bytes."""
    made = tmp_path / "version-cache" / "worker-0" / "m" / name
    made.mkdir(parents=True)
    (made / "file").write_bytes(b"0123456789")
    return made


def test_adapters_come_apart_only_for_an_engine_that_serves_them(tmp_path: Path) -> None:
    base, adapter, merged = (folder(tmp_path, name) for name in ("base", "adapter", "merged"))
    lora = checkpoint(2, format="lora", base_version=1)
    with (
        patch.object(version_source, "fetch_adapter", lambda *_, **__: (base, adapter)),
        patch.object(version_source, "fetch_version", lambda *_, **__: merged),
    ):
        assert source(tmp_path, serves_adapters=True, limit=99).fetch(lora) == VersionFiles(base, adapter)
        assert source(tmp_path, serves_adapters=False, limit=99).fetch(lora) == VersionFiles(merged)
        assert source(tmp_path, serves_adapters=True, limit=99).fetch(checkpoint(1)) == VersionFiles(merged)


def test_the_cache_loses_what_no_track_serves_and_is_not_recent(tmp_path: Path) -> None:
    served = source(tmp_path, serves_adapters=False)
    folders = []
    for number in range(12):
        one = folder(tmp_path, f"{number}.files")
        folders.append(one)
        with patch.object(version_source, "fetch_version", lambda *_, one=one, **__: one):
            files = served.fetch(checkpoint(number + 1))
        if number == 0:
            served.hold("stable", files)
    assert [one.stem for one in folders if one.exists()] == ["0", "4", "5", "6", "7", "8", "9", "10", "11"]


def test_a_full_disk_empties_the_cache_of_what_is_not_in_use(tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> Path:
        raise NotStored("m@3: this machine cannot hold its files: No space left on device")

    made = source(tmp_path, serves_adapters=False, limit=99)
    folders = [folder(tmp_path, f"{number}.files") for number in (1, 2)]
    for number, one in enumerate(folders, 1):
        with patch.object(version_source, "fetch_version", lambda *_, one=one, **__: one):
            made.hold("stable", made.fetch(checkpoint(number)))
    folders.append(folder(tmp_path, "3-0123.files"))  # downloaded until the disk was full
    with patch.object(version_source, "fetch_version", fail), pytest.raises(CheckpointRefusedError, match="No space"):
        made.fetch(checkpoint(3))
    assert [one.exists() for one in folders] == [False, True, True]


def test_a_rejected_version_is_refused_with_the_reason(tmp_path: Path) -> None:
    def reject(*_: object, **__: object) -> Path:
        raise VersionRejected("m@1: no trusted key signed it")

    with (
        patch.object(version_source, "fetch_version", reject),
        pytest.raises(CheckpointRefusedError, match="no trusted key signed it"),
    ):
        source(tmp_path, serves_adapters=False).fetch(checkpoint(1))


def test_a_fault_of_this_machine_s_disk_is_refused_and_not_the_end_of_the_worker(tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> Path:
        raise OSError(28, "No space left on device")

    whole = folder(tmp_path, "whole")
    with (
        patch.object(version_source, "fetch_version", fail),
        pytest.raises(CheckpointRefusedError, match="this machine"),
    ):
        source(tmp_path, serves_adapters=False).fetch(checkpoint(1))
    with (
        patch.object(version_source, "fetch_version", lambda *_, **__: whole),
        patch.object(version_source, "prune_cache", fail),
    ):
        assert source(tmp_path, serves_adapters=False).fetch(checkpoint(1)).weights == whole
