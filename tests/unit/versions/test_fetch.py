"""Check that a version is fetched whole and unchanged, or rejected with the reason."""

import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from stepstream.core.object_store import remove, upload
from stepstream.crypto.signatures import BadKey, create_key, load_key
from stepstream.topics.events import Checkpoint, new_checkpoint, new_checkpoint_file
from stepstream.versions.cache import prune_cache
from stepstream.versions.fetch import fetch_version
from stepstream.versions.layout import NotStored, VersionRejected
from stepstream.versions.signing import sign

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


def fetch(checkpoint: Checkpoint, cache_folder: Path, **options: Any) -> Path:
    return fetch_version(checkpoint, lambda _model, _version: None, cache_folder, **options)


def test_a_version_on_this_machine_is_used_in_place(tmp_path: Path) -> None:
    folder = fetch(version_in(tmp_path / "m"), tmp_path / "cache")
    assert folder == tmp_path / "m/weights"
    assert not (tmp_path / "cache").exists()


def test_the_training_state_is_neither_read_nor_needed(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m")
    (tmp_path / "m/training/optimizer.safetensors").unlink()
    fetch(checkpoint, tmp_path / "cache")


def test_a_version_of_the_old_layout_is_linked_without_its_training_state(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m", FLAT)
    for _ in range(2):
        folder = fetch(checkpoint, tmp_path / "cache")
        found = sorted(path.name for path in folder.iterdir())
        assert found == ["config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"]
        assert (folder / "config.json").read_text() == "config.json"
    root = version_in(tmp_path / "root", FLAT[:2])
    assert fetch(root, tmp_path / "cache") == tmp_path / "root"


@pytest.mark.parametrize("names", [FLAT, NEW])
def test_a_damaged_cut_or_missing_file_is_rejected(tmp_path: Path, names: tuple[str, ...]) -> None:
    checkpoint = version_in(tmp_path / "m", names)
    weights = tmp_path / "m" / names[1]
    content = weights.read_bytes()
    for damaged in (content[:-1] + b"\1", content[:-1], b""):
        weights.write_bytes(damaged)
        with pytest.raises(VersionRejected, match=r"m@3: .*model\.safetensors has sha256 .*, its event has"):
            fetch(checkpoint, tmp_path / "cache")
    weights.unlink()
    with pytest.raises(VersionRejected, match=r"m@3: .*model\.safetensors cannot be read: No such file"):
        fetch(checkpoint, tmp_path / "cache")


@pytest.mark.parametrize("names", [FLAT, NEW])
def test_a_file_that_the_event_does_not_list_is_rejected(tmp_path: Path, names: tuple[str, ...]) -> None:
    checkpoint = version_in(tmp_path / "m", names)
    ((tmp_path / "m" / names[0]).parent / "consolidated.safetensors").write_bytes(b"other weights")
    with pytest.raises(VersionRejected, match=r"m@3: its event does not list consolidated\.safetensors"):
        fetch(checkpoint, tmp_path / "cache")


@pytest.mark.parametrize("role", ["training", "another"])
def test_a_file_beside_the_weights_that_no_reader_hashes_is_rejected(tmp_path: Path, role: str) -> None:
    """A signature does not cover the training state: its role must not bring a template past the check."""
    trusted = create_key(tmp_path / "trusted.pem")
    checkpoint = version_in(tmp_path / "m")
    checkpoint["signatures"] = [sign(checkpoint, load_key(tmp_path / "trusted.pem"))]
    fetch(checkpoint, tmp_path / "cache", trusted_keys=[trusted])
    (tmp_path / "m/weights/chat_template.jinja").write_text("{{ 'another prompt' }}")
    checkpoint["files"].append(
        new_checkpoint_file(path="weights/chat_template.jinja", sha256="", size_bytes=0, role=role)
    )
    if role != "training":
        checkpoint["signatures"] = [sign(checkpoint, load_key(tmp_path / "trusted.pem"))]
    with pytest.raises(VersionRejected, match=r"m@3: its event does not list chat_template\.jinja"):
        fetch(checkpoint, tmp_path / "cache", trusted_keys=[trusted])


def test_a_file_in_a_folder_of_the_old_layout_that_the_event_does_not_list_is_rejected(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m", FLAT[:2])
    (tmp_path / "m/additional_chat_templates").mkdir()
    (tmp_path / "m/additional_chat_templates/tool_use.jinja").write_text("{{ 'another prompt' }}")
    with pytest.raises(VersionRejected, match=r"m@3: its event does not list tool_use\.jinja"):
        fetch(checkpoint, tmp_path / "cache")


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "weights/..\\x", "weights/../../secret"])
def test_a_name_that_leaves_the_folder_is_rejected(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    checkpoint = version_in(tmp_path / "m")
    sha256 = hashlib.sha256(b"secret").hexdigest()
    checkpoint["files"].append(new_checkpoint_file(path=path, sha256=sha256, size_bytes=6, role="config"))
    with pytest.raises(VersionRejected, match="leaves the version's folder"):
        fetch(checkpoint, tmp_path / "cache")


def test_a_link_is_rejected(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m")
    (tmp_path / "m/weights").rename(tmp_path / "elsewhere")
    (tmp_path / "m/weights").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VersionRejected, match="is a symbolic link"):
        fetch(checkpoint, tmp_path / "cache")


def test_a_version_without_weights_is_rejected(tmp_path: Path) -> None:
    empty = version_in(tmp_path / "m", ("weights/config.json", "training/optimizer.safetensors"))
    with pytest.raises(VersionRejected, match="m@3: its event lists no file with weights"):
        fetch(empty, tmp_path / "cache")
    twice = version_in(tmp_path / "n")
    twice["files"].append(twice["files"][0])
    with pytest.raises(VersionRejected, match=r"lists weights/config\.json twice"):
        fetch(twice, tmp_path / "cache")


def test_a_version_in_a_store_is_downloaded_once_and_hashed_on_the_way(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m")
    checkpoint["uri"] = "memory://bucket/m/3"
    upload(tmp_path / "m", checkpoint["uri"])
    shutil.rmtree(tmp_path / "m")
    folder = fetch(checkpoint, tmp_path / "cache")
    found = sorted(
        path.relative_to(tmp_path / "cache").name for path in (tmp_path / "cache").rglob("*.*") if path.is_file()
    )
    assert found == ["config.json", "model.safetensors", "tokenizer.json"]
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert fetch(checkpoint, tmp_path / "cache") == folder
    assert load_file(folder / "model.safetensors")["w"].tolist() == [0, 1, 2, 3]
    with fsspec.open("memory://bucket/m/3/weights/model.safetensors", "wb") as out:
        out.write(b"other weights")
    assert fetch(checkpoint, tmp_path / "cache") == folder, "it is in the cache"
    with pytest.raises(VersionRejected, match=r"m@3: weights/model\.safetensors has sha256"):
        fetch(checkpoint, tmp_path / "other cache")
    assert not [path for path in (tmp_path / "other cache").rglob("*model*") if path.is_file()]
    remove(checkpoint["uri"])
    with pytest.raises(VersionRejected, match=r"m@3: memory://bucket/m/3/weights/config\.json cannot be read"):
        fetch(checkpoint, tmp_path / "third cache")


def test_an_object_longer_than_its_event_says_is_not_downloaded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another object under the name could otherwise fill the disk before its digest is known."""
    checkpoint = version_in(tmp_path / "m")
    checkpoint["uri"] = "memory://longer"
    upload(tmp_path / "m", checkpoint["uri"])
    with fsspec.open("memory://longer/weights/config.json", "wb") as out:
        out.write(bytes(5 << 20))
    written: list[int] = []
    unlink = Path.unlink

    def note(path: Path, missing_ok: bool = False) -> None:
        written.append(path.stat().st_size if path.exists() else 0)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", note)
    with pytest.raises(VersionRejected, match=r"m@3: weights/config\.json has more bytes than the 19 of its event"):
        fetch(checkpoint, tmp_path / "cache")
    assert max(written) <= 1 << 20
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("method", ["open", "put_file"])
def test_credentials_that_a_store_rejects_are_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    checkpoint = version_in(tmp_path / "m")
    checkpoint["uri"] = "memory://expired"
    upload(tmp_path / "m", checkpoint["uri"])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("The provided token has expired.")

    monkeypatch.setattr(fsspec.filesystem("memory"), method, refuse, raising=False)
    remedy = "expired.*: the store rejects .* credentials.* in its environment and restart it"
    if method == "open":
        with pytest.raises(VersionRejected, match=rf"m@3: memory://expired/weights/config\.json .*{remedy}"):
            fetch(checkpoint, tmp_path / "cache")
        assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    else:
        with pytest.raises(PermissionError, match=remedy):
            upload(tmp_path / "m", "memory://expired-too")


def test_an_address_without_a_client_is_rejected(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m")
    checkpoint["uri"] = "nowhere://bucket/m/3"
    with pytest.raises(VersionRejected, match="no client for this kind of address"):
        fetch(checkpoint, tmp_path / "cache")


def test_the_cache_keeps_what_is_in_use_and_was_used_last(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / f"m/{number}.files"
        (folder / "weights").mkdir(parents=True)
        (folder / "weights/model.safetensors").write_bytes(bytes(100))
        os.utime(folder, (number, number))
    prune_cache(tmp_path, 250, [tmp_path / "m/0.files/weights"])
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["0.files", "3.files"]


def test_the_cache_of_a_model_whose_name_has_a_slash_stays_below_its_limit(tmp_path: Path) -> None:
    for number in range(3):
        checkpoint = version_in(tmp_path / str(number))
        checkpoint |= {"model": "org/name", "version": number, "uri": f"memory://slash/{number}"}
        upload(tmp_path / str(number), checkpoint["uri"])
        folder = fetch(checkpoint, tmp_path / "cache")
        os.utime(folder.parent, (number, number))
        prune_cache(tmp_path / "cache", 1, [folder])
    assert len(list((tmp_path / "cache/org/name").iterdir())) == 1
    assert folder.is_dir()


def test_a_removed_version_is_rejected(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m")
    checkpoint |= {"removed_at_us": 5, "removal_reason": "retention"}
    with pytest.raises(VersionRejected, match="m@3: its files were removed: retention"):
        fetch(checkpoint, tmp_path / "cache")


def test_only_what_a_trusted_key_signed_is_fetched(tmp_path: Path) -> None:
    trusted, other = (create_key(tmp_path / name) for name in ("trusted.pem", "other.pem"))
    assert (tmp_path / "trusted.pem").stat().st_mode & 0o777 == 0o600
    checkpoint = version_in(tmp_path / "m")
    with pytest.raises(VersionRejected, match="m@3: no trusted key signed it, but nobody"):
        fetch(checkpoint, tmp_path / "cache", trusted_keys=[trusted])
    checkpoint["signatures"] = [sign(checkpoint, load_key(tmp_path / "trusted.pem"))]
    fetch(checkpoint, tmp_path / "cache", trusted_keys=[other, trusted])
    fetch(checkpoint, tmp_path / "cache")
    with pytest.raises(VersionRejected, match="no trusted key signed it"):
        fetch(checkpoint, tmp_path / "cache", trusted_keys=[other])
    for changed in (
        {"version": 4},
        {"model": "n"},
        {"base_version": 1},
        {"format": "lora"},
        {"parent_version": 2},
        {"files": [*checkpoint["files"][:-2], {**checkpoint["files"][-2], "sha256": "ab"}]},
        {"files": [*checkpoint["files"], new_checkpoint_file(path="weights/x.safetensors", sha256="", size_bytes=0)]},
    ):
        with pytest.raises(VersionRejected, match=r"its signature by key .* is wrong"):
            fetch({**checkpoint, **changed}, tmp_path / "cache", trusted_keys=[trusted])  # type: ignore[typeddict-item]
    without_training = [file for file in checkpoint["files"] if not file["path"].startswith("training/")]
    fetch({**checkpoint, "files": without_training}, tmp_path / "cache", trusted_keys=[trusted])
    with pytest.raises(BadKey, match="'nonsense' is not an Ed25519 public key"):
        fetch(checkpoint, tmp_path / "cache", trusted_keys=["nonsense"])
    with pytest.raises(BadKey, match="has no private key"):
        load_key(tmp_path / "absent.pem")
    with pytest.raises(FileExistsError):
        create_key(tmp_path / "trusted.pem")


def test_a_folder_that_may_not_be_entered_is_a_rejection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = version_in(tmp_path / "m")

    def refuse(path: Path, *_: object) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for method in ("is_symlink", "rglob"):  # root may enter every folder
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, refuse)
            with pytest.raises(VersionRejected, match=r"m@3: .* cannot be read: Permission denied"):
                fetch(checkpoint, tmp_path / "cache")
    fetch(checkpoint, tmp_path / "cache")


def test_weights_in_another_form_are_a_rejection(tmp_path: Path) -> None:
    checkpoint = version_in(tmp_path / "m", FLAT)
    content = b"no safetensors file"
    (tmp_path / "m/model.safetensors").write_bytes(content)
    checkpoint["files"][1]["sha256"] = hashlib.sha256(content).hexdigest()
    with pytest.raises(VersionRejected, match=r"m@3: a file is malformed"):
        fetch(checkpoint, tmp_path / "cache")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_a_fault_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    checkpoint = version_in(tmp_path / "m")
    checkpoint["uri"] = f"memory://full-{number}"
    upload(tmp_path / "m", checkpoint["uri"])

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for method in ("mkdir", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, refuse)
            with pytest.raises(NotStored, match=rf"m@3: this machine cannot hold its files: .*{os.strerror(number)}"):
                fetch(checkpoint, tmp_path / "cache")
    assert fetch(checkpoint, tmp_path / "cache").is_dir(), "it is tried again"
