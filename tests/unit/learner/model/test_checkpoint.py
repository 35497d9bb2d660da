"""Check how a version's folder is written, described and verified."""

from pathlib import Path

import pytest

from stepstream.learner.model import checkpoint
from stepstream.learner.model.checkpoint import CheckpointFault, describe, folder_of, verify, write_root


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "given model"
    (folder / "nested").mkdir(parents=True)
    for name in ("model.safetensors", "config.json", "nested/tokenizer.json"):
        (folder / name).write_text(name)
    return folder


def test_a_root_is_copied_and_described(model: Path, tmp_path: Path) -> None:
    files = write_root(model, tmp_path / "m/0")
    assert [file["path"] for file in files] == ["config.json", "model.safetensors", "nested/tokenizer.json"]
    assert files[0]["size_bytes"] == len("config.json")
    verify(tmp_path / "m/0", files)
    assert folder_of((tmp_path / "m/0").as_uri()) == tmp_path / "m/0"
    assert folder_of(model.as_uri()) == model


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_folder_without_a_model_is_rejected(model: Path, tmp_path: Path, missing: str) -> None:
    (model / missing).unlink()
    with pytest.raises(CheckpointFault, match=missing):
        write_root(model, tmp_path / "m/0")


def test_a_damaged_file_is_named(model: Path) -> None:
    files = describe(model)
    (model / "config.json").write_text("other")
    with pytest.raises(CheckpointFault, match=r"config\.json differs from the published file"):
        verify(model, files)
    (model / "config.json").unlink()
    with pytest.raises(CheckpointFault, match=r"config\.json is missing"):
        verify(model, files)


def test_a_fault_leaves_no_folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_path: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "_sync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_root(model, tmp_path / "m/0")
    assert list((tmp_path / "m").iterdir()) == []


def test_a_folder_left_by_a_crash_is_replaced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "m/0").mkdir(parents=True)
    (tmp_path / "m/0/left.txt").write_text("half")
    (tmp_path / "m/.0-scratch").mkdir()
    write_root(model, tmp_path / "m/0")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["0"]
    assert not (tmp_path / "m/0/left.txt").exists()


def test_other_addresses_are_rejected() -> None:
    with pytest.raises(CheckpointFault, match="s3://bucket/x"):
        folder_of("s3://bucket/x")
