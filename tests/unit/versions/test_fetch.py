"""Check that a version is fetched whole and unchanged, or rejected with the reason."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from stepstream.topics.events import Checkpoint, new_checkpoint, new_checkpoint_file
from stepstream.versions.fetch import fetch_version
from stepstream.versions.layout import VersionRejected

FLAT = ("config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json", "adapter/adapter_config.json")
NEW = ("weights/config.json", "weights/model.safetensors", "weights/tokenizer.json", "training/optimizer.safetensors")


def version_in(folder: Path, names: tuple[str, ...] = NEW) -> Checkpoint:
    """Write files and return their event."""
    files = []
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors"):
            save_file({"w": np.arange(4, dtype=np.float32)}, folder / name)
        else:
            (folder / name).write_text(name)
        content = (folder / name).read_bytes()
        files.append(
            new_checkpoint_file(path=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        )
    return new_checkpoint(
        event_id="0197-abcdef", occurred_at_us=0, model="m", version=3, uri=folder.as_uri(), weights_sha256="",
        files=files, code_version="",
    )  # fmt: skip


def test_a_version_on_this_machine_is_used_in_place(tmp_path: Path) -> None:
    folder = fetch_version(version_in(tmp_path / "m"), tmp_path / "cache")
    assert folder == tmp_path / "m/weights"
    assert not (tmp_path / "cache").exists()


def test_the_training_state_is_neither_read_nor_needed(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m")
    (tmp_path / "m/training/optimizer.safetensors").unlink()
    fetch_version(checkpoint, tmp_path / "cache")


def test_a_version_of_the_old_layout_is_linked_without_its_training_state(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m", FLAT)
    for _ in range(2):
        folder = fetch_version(checkpoint, tmp_path / "cache")
        found = sorted(path.name for path in folder.iterdir())
        assert found == ["config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"]
        assert (folder / "config.json").read_text() == "config.json"
    root = version_in(tmp_path / "root", FLAT[:2])
    assert fetch_version(root, tmp_path / "cache") == tmp_path / "root"


@pytest.mark.parametrize("names", [FLAT, NEW])
def test_a_damaged_cut_or_missing_file_is_rejected(tmp_path: Path, names: tuple[str, ...]) -> None:
    checkpoint = version_in(tmp_path / "m", names)
    weights = tmp_path / "m" / names[1]
    content = weights.read_bytes()
    for damaged in (content[:-1] + b"\1", content[:-1], b""):
        weights.write_bytes(damaged)
        with pytest.raises(VersionRejected, match=r"m@3: .*model\.safetensors has sha256 .*, its event has"):
            fetch_version(checkpoint, tmp_path / "cache")
    weights.unlink()
    with pytest.raises(VersionRejected, match=r"m@3: .*model\.safetensors cannot be read: No such file"):
        fetch_version(checkpoint, tmp_path / "cache")


@pytest.mark.parametrize("names", [FLAT, NEW])
def test_a_file_that_the_event_does_not_list_is_rejected(tmp_path: Path, names: tuple[str, ...]) -> None:
    checkpoint = version_in(tmp_path / "m", names)
    ((tmp_path / "m" / names[0]).parent / "consolidated.safetensors").write_bytes(b"other weights")
    with pytest.raises(VersionRejected, match=r"m@3: its event does not list consolidated\.safetensors"):
        fetch_version(checkpoint, tmp_path / "cache")


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "weights/..\\x", "weights/../../secret"])
def test_a_name_that_leaves_the_folder_is_rejected(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    checkpoint = version_in(tmp_path / "m")
    sha256 = hashlib.sha256(b"secret").hexdigest()
    checkpoint["files"].append(new_checkpoint_file(path=path, sha256=sha256, size_bytes=6, role="config"))
    with pytest.raises(VersionRejected, match="leaves the version's folder"):
        fetch_version(checkpoint, tmp_path / "cache")


def test_a_link_is_rejected(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m")
    (tmp_path / "m/weights").rename(tmp_path / "elsewhere")
    (tmp_path / "m/weights").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VersionRejected, match="is a symbolic link"):
        fetch_version(checkpoint, tmp_path / "cache")


def test_a_version_without_weights_is_rejected(tmp_path: Path) -> None:
    empty = version_in(tmp_path / "m", ("weights/config.json", "training/optimizer.safetensors"))
    with pytest.raises(VersionRejected, match="m@3: its event lists no file with weights"):
        fetch_version(empty, tmp_path / "cache")
    twice = version_in(tmp_path / "n")
    twice["files"].append(twice["files"][0])
    with pytest.raises(VersionRejected, match=r"lists weights/config\.json twice"):
        fetch_version(twice, tmp_path / "cache")


def test_an_address_of_another_kind_is_rejected(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m")
    checkpoint["uri"] = "s3://bucket/m/3"
    with pytest.raises(VersionRejected, match="m@3: only file:// addresses are loaded, not s3://bucket/m/3"):
        fetch_version(checkpoint, tmp_path / "cache")
