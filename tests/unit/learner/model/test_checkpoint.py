"""Check how a version's folder is written, described and verified."""

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stepstream.learner.model import checkpoint
from stepstream.learner.model.checkpoint import CheckpointFault, StoredWeights, describe, folder_of, verify, write_root
from stepstream.learner.unfinished import marked_folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "given model"
    (folder / "nested").mkdir(parents=True)
    for name in (
        "config.json",
        "nested/tokenizer.json",
        "pytorch_model.bin",
        "optimizer.safetensors",
        ".gitattributes",
    ):
        (folder / name).write_text(name)
    save_file({"w": torch.ones(2)}, folder / "model.safetensors")
    return folder


def test_a_root_has_what_is_served_with_roles_and_an_index(model: Path, tmp_path: Path) -> None:
    files = write_root(model, tmp_path / "m/0")
    assert [(file["path"], file["role"]) for file in files] == [
        ("weights/config.json", "config"),
        ("weights/model.safetensors", "weights"),
        ("weights/model.safetensors.index.json", "weights"),
        ("weights/nested/tokenizer.json", "tokenizer"),
    ]
    assert files[0]["size_bytes"] == len("config.json")
    verify(tmp_path / "m/0", files)
    assert folder_of((tmp_path / "m/0").as_uri()) == tmp_path / "m/0"
    assert folder_of(model.as_uri()) == model
    weights = StoredWeights(tmp_path / "m/0")
    assert {name: weights[name].tolist() for name in weights} == {"w": [1.0, 1.0]}


@pytest.mark.parametrize("name", ["m", "org/m", "org/team/m"])
def test_another_user_can_read_a_version_whatever_the_umask(model: Path, tmp_path: Path, name: str) -> None:
    before = os.umask(0o077)
    try:
        with marked_folder(tmp_path / "data/checkpoints" / name / "0", name):
            write_root(model, tmp_path / "data/checkpoints" / name / "0")
        write_root(model, tmp_path / "unmarked/m/0")
    finally:
        os.umask(before)
    for folder in (tmp_path / "data/checkpoints", tmp_path / "unmarked"):
        modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [folder, *folder.rglob("*")]}
        assert modes == {(True, 0o755), (False, 0o644)}
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700, "it is not the learner's to open"


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_folder_without_a_model_is_rejected(model: Path, tmp_path: Path, missing: str) -> None:
    (model / missing).unlink()
    with pytest.raises(CheckpointFault, match=missing):
        write_root(model, tmp_path / "m/0")


def test_an_index_whose_file_is_missing_is_rejected(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-00001-of-00002.safetensors"}}')
    with pytest.raises(CheckpointFault, match="has no model-00001-of-00002"):
        write_root(model, tmp_path / "m/0")


def test_weights_that_are_no_safetensors_file_are_rejected(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").write_text("no weights at all")
    with pytest.raises(CheckpointFault, match="is not a safetensors file"):
        write_root(model, tmp_path / "m/0")
    assert list((tmp_path / "m").iterdir()) == []


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


def test_other_addresses_are_rejected() -> None:
    with pytest.raises(CheckpointFault, match="s3://bucket/x"):
        folder_of("s3://bucket/x")
