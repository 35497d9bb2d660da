"""Check that versions as deltas and as adapters are completed from their bases."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from stepstream.crypto.signatures import create_key, load_key
from stepstream.topics.events import Checkpoint, new_checkpoint, new_checkpoint_file
from stepstream.versions.delta import write_delta
from stepstream.versions.fetch import fetch_adapter, fetch_version, fetch_whole
from stepstream.versions.layout import NotStored, VersionRejected, index_of, role_of_path
from stepstream.versions.signing import sign


def weights(folder: Path, seed: int) -> Path:
    """Write weights in two files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for shard in (1, 2):
        tensors: dict[str, Any] = {
            f"w{shard}.weight": rng.standard_normal((8, 4)).astype(np.float32),
            f"b{shard}": np.ones(3, np.float16),
        }
        save_file(tensors, folder / f"model-{shard}.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_bytes(index_of(folder.glob("*.safetensors")))
    return folder


class Published:
    """Versions by number, and the function that finds them."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.by_number: dict[int, Checkpoint] = {}

    def lookup(self, _model: str, version: int) -> Checkpoint | None:
        return self.by_number.get(version)

    def add(self, version: int, form: str = "full", base: int | None = None) -> Checkpoint:
        folder = self.data / str(version)
        (folder / "weights/config.json").write_text(str(version))
        files = []
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name, content = path.relative_to(folder).as_posix(), path.read_bytes()
                digest = hashlib.sha256(content).hexdigest()
                role = role_of_path(name)
                files.append(new_checkpoint_file(path=name, sha256=digest, size_bytes=len(content), role=role))
        checkpoint = new_checkpoint(
            event_id=f"e{version}", occurred_at_us=0, model="m", version=version, uri=folder.as_uri(),
            weights_sha256="", files=files, code_version="", format=form, base_version=base,
        )  # fmt: skip
        self.by_number[version] = checkpoint
        return checkpoint


def deltas(data: Path) -> Published:
    """Publish version 0 in full, 1 and 2 each as the difference from the version before."""
    published = Published(data)
    for number in range(3):
        weights(data / f"full {number}", number)
        if number == 0:
            weights(data / "0/weights", 0)
            published.add(0)
            continue
        target = data / f"{number}/weights"
        target.mkdir(parents=True)
        assert write_delta(data / f"full {number}", data / f"full {number - 1}", target)
        published.add(number, "delta", number - 1)
    return published


def test_a_chain_of_deltas_gives_the_same_bytes(tmp_path: Path) -> None:
    published = deltas(tmp_path)
    for _ in range(2):
        folder = fetch_version(published.by_number[2], published.lookup, tmp_path / "cache")
        for name in ("model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"):
            assert (folder / name).read_bytes() == (tmp_path / "full 2" / name).read_bytes()
        assert (folder / "config.json").read_text() == "2"
        assert not (folder / "delta.bin").exists()
    whole = fetch_whole(published.by_number[2], published.lookup, tmp_path / "cache")
    assert (whole / "weights").resolve() == folder


def test_a_completed_version_that_was_damaged_in_the_cache_is_completed_again(tmp_path: Path) -> None:
    published = deltas(tmp_path)
    folder = fetch_version(published.by_number[2], published.lookup, tmp_path / "cache")
    base = next((tmp_path / "cache").rglob("1-*.complete"))
    for damaged in (folder, base):
        weights = damaged / "model-1.safetensors"
        content = weights.read_bytes()
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert fetch_version(published.by_number[2], published.lookup, tmp_path / "cache") == folder
    for damaged, number in ((folder, 2), (base, 1)):
        name = "model-1.safetensors"
        assert (damaged / name).read_bytes() == (tmp_path / f"full {number}" / name).read_bytes()


def test_a_base_that_is_another_one_or_gone_is_told(tmp_path: Path) -> None:
    published = deltas(tmp_path)
    published.by_number[0]["version"], weights_of_two = 0, tmp_path / "full 2"
    (tmp_path / "0/weights/model-1.safetensors").write_bytes((weights_of_two / "model-1.safetensors").read_bytes())
    published.add(0)
    with pytest.raises(VersionRejected, match=r"m@1: cannot be completed .*w1\.weight.*the base is another one"):
        fetch_version(published.by_number[2], published.lookup, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").rglob("*.complete")] == []
    del published.by_number[0]
    with pytest.raises(VersionRejected, match="m@1: its base, version 0, is not published"):
        fetch_version(published.by_number[2], published.lookup, tmp_path / "cache")
    published.by_number[1]["base_version"] = 1
    with pytest.raises(VersionRejected, match="m@1: its base, version 1"):
        fetch_version(published.by_number[1], published.lookup, tmp_path / "cache")


def test_a_damaged_delta_is_rejected(tmp_path: Path) -> None:
    published = deltas(tmp_path)
    data = tmp_path / "1/weights/delta.bin"
    data.write_bytes(data.read_bytes()[:-4])
    published.add(1, "delta", 0)
    with pytest.raises(VersionRejected, match="m@1: cannot be completed from its base"):
        fetch_version(published.by_number[1], published.lookup, tmp_path / "cache")


def test_the_base_too_must_be_signed(tmp_path: Path) -> None:
    key = create_key(tmp_path / "key.pem")
    published = deltas(tmp_path)
    delta = published.by_number[1]
    delta["signatures"] = [sign(delta, load_key(tmp_path / "key.pem"))]
    with pytest.raises(VersionRejected, match="m@0: no trusted key signed it"):
        fetch_version(delta, published.lookup, tmp_path / "cache", trusted_keys=[key])


def test_a_learner_s_new_key_continues_versions_of_the_old_one(tmp_path: Path) -> None:
    old, new = (create_key(tmp_path / f"{name}.pem") for name in ("old", "new"))
    published = deltas(tmp_path)
    for number, name in ((0, "old"), (1, "new")):
        one = published.by_number[number]
        one["signatures"] = [sign(one, load_key(tmp_path / f"{name}.pem"))]
    fetch_version(published.by_number[1], published.lookup, tmp_path / "cache", trusted_keys=[old, new])
    with pytest.raises(VersionRejected, match="m@0: no trusted key signed it"):
        fetch_version(published.by_number[1], published.lookup, tmp_path / "cache", trusted_keys=[new])


def test_other_shapes_give_no_delta(tmp_path: Path) -> None:
    base, new = weights(tmp_path / "base", 0), weights(tmp_path / "new", 1)
    save_file({"w1.weight": np.ones((4, 8), np.float32), "b1": np.ones(3, np.float16)}, new / "model-1.safetensors")
    assert not write_delta(new, base, tmp_path)
    assert not (tmp_path / "delta.bin").exists()


@given(st.binary(min_size=64, max_size=64), st.binary(min_size=64, max_size=64))
def test_any_bits_come_back(tmp_path_factory: pytest.TempPathFactory, one: bytes, two: bytes) -> None:
    """NaN, infinities and denormals too."""
    data = tmp_path_factory.mktemp("bits")
    published = Published(data)
    for name, content in (("0/weights", one), ("full", two)):
        (data / name).mkdir(parents=True)
        save_file({"w": np.frombuffer(content, np.float32)}, data / name / "model.safetensors")
    (data / "1/weights").mkdir(parents=True)
    published.add(0)
    assert write_delta(data / "full", data / "0/weights", data / "1/weights")
    folder = fetch_version(published.add(1, "delta", 0), published.lookup, data / "cache")
    assert (folder / "model.safetensors").read_bytes() == (data / "full/model.safetensors").read_bytes()


def test_adapters_are_merged_for_engines_without_them(tmp_path: Path) -> None:
    published = Published(tmp_path)
    base = load_file(weights(tmp_path / "0/weights", 0) / "model-1.safetensors")["w1.weight"]
    published.add(0)
    adapter = tmp_path / "1/weights/adapter"
    adapter.mkdir(parents=True)
    a, b = np.full((2, 4), 0.5, np.float32), np.full((8, 2), 0.25, np.float32)
    names = {"base_model.model.w1.lora_A.weight": a, "base_model.model.w1.lora_B.weight": b}
    save_file(names, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 8, "fan_in_fan_out": False}))
    lora = published.add(1, "lora", 0)
    folder = fetch_version(lora, published.lookup, tmp_path / "cache")
    np.testing.assert_array_equal(load_file(folder / "model-1.safetensors")["w1.weight"], base + (b @ a) * 4)
    assert (folder / "model-2.safetensors").read_bytes() == (tmp_path / "0/weights/model-2.safetensors").read_bytes()
    assert fetch_adapter(lora, published.lookup, tmp_path / "cache") == (tmp_path / "0/weights", adapter)
    with pytest.raises(VersionRejected, match="m@0 has the format 'full', not 'lora'"):
        fetch_adapter(published.by_number[0], published.lookup, tmp_path / "cache")
    save_file({name.replace("w1", "w9"): value for name, value in names.items()}, adapter / "adapter_model.safetensors")
    with pytest.raises(VersionRejected, match="the base has no layer w9"):
        fetch_version(published.add(1, "lora", 0), published.lookup, tmp_path / "cache")


@pytest.mark.parametrize("content", ["[]", "{}", '{"pieces": 1}', '{"pieces": [1]}', '{"pieces": [{"file": []}]}', "x"])
def test_a_malformed_delta_is_a_rejection(tmp_path: Path, content: str) -> None:
    published = Published(tmp_path)
    weights(tmp_path / "0/weights", 0)
    published.add(0)
    folder = tmp_path / "1/weights"
    folder.mkdir(parents=True)
    (folder / "delta.json").write_text(content)
    (folder / "delta.bin").write_bytes(b"")
    with pytest.raises(VersionRejected, match="cannot be completed from its base"):
        fetch_version(published.add(1, "delta", 0), published.lookup, tmp_path / "cache")


def test_a_delta_that_claims_more_bytes_than_its_tensor_is_not_decompressed(tmp_path: Path) -> None:
    published = Published(tmp_path)
    weights(tmp_path / "0/weights", 0)
    published.add(0)
    weights(tmp_path / "full", 1)
    folder = tmp_path / "1/weights"
    folder.mkdir(parents=True)
    write_delta(tmp_path / "full", tmp_path / "0/weights", folder)
    frame = bytes.fromhex("28b52ffde0") + (1 << 60).to_bytes(8, "little") + b"\1\0\0"
    (folder / "delta.bin").write_bytes(frame)
    delta = json.loads((folder / "delta.json").read_bytes())
    delta["pieces"][0] |= {"offset": 0, "size": len(frame)}
    (folder / "delta.json").write_text(json.dumps(delta))
    with pytest.raises(VersionRejected, match=f"m@1: .* its delta {1 << 60}"):
        fetch_version(published.add(1, "delta", 0), published.lookup, tmp_path / "cache")


def test_weights_that_do_not_fit_into_memory_are_a_fault_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = deltas(tmp_path)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("stepstream.versions.fetch.apply_delta", fail)
    with pytest.raises(NotStored, match="m@1: this machine cannot hold its files"):
        fetch_version(published.by_number[1], published.lookup, tmp_path / "cache")


@pytest.mark.parametrize(
    "change",
    [{"use_rslora": True}, {"use_dora": True}, {"rank_pattern": {"w1": 4}}, {"alpha_pattern": {"w1": 4}}, "magnitude"],
    ids=str,
)
def test_adapters_that_are_more_than_two_matrices_are_not_merged(tmp_path: Path, change: Any) -> None:
    """Without their other parts, or with another scale, they would be other weights."""
    published = Published(tmp_path)
    weights(tmp_path / "0/weights", 0)
    published.add(0)
    adapter = tmp_path / "1/weights/adapter"
    adapter.mkdir(parents=True)
    shapes: dict[str, tuple[int, ...]] = {
        "base_model.model.w1.lora_A.weight": (2, 4),
        "base_model.model.w1.lora_B.weight": (8, 2),
    }
    config: dict[str, Any] = {"r": 2, "lora_alpha": 8, "use_rslora": False, "rank_pattern": {}}
    if isinstance(change, dict):
        config |= change
    else:
        shapes["base_model.model.w1.lora_magnitude_vector"] = (8,)
    save_file(
        {name: np.ones(shape, np.float32) for name, shape in shapes.items()}, adapter / "adapter_model.safetensors"
    )
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(VersionRejected, match=r"m@1: cannot be completed from its base: .* cannot be merged"):
        fetch_version(published.add(1, "lora", 0), published.lookup, tmp_path / "cache")


def test_adapters_of_rank_0_are_a_rejection(tmp_path: Path) -> None:
    published = Published(tmp_path)
    weights(tmp_path / "0/weights", 0)
    published.add(0)
    adapter = tmp_path / "1/weights/adapter"
    adapter.mkdir(parents=True)
    names = {"base_model.model.w1.lora_A.weight": (2, 4), "base_model.model.w1.lora_B.weight": (8, 2)}
    save_file(
        {name: np.ones(shape, np.float32) for name, shape in names.items()}, adapter / "adapter_model.safetensors"
    )
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 0, "lora_alpha": 8}))
    with pytest.raises(VersionRejected, match="m@1: cannot be completed from its base"):
        fetch_version(published.add(1, "lora", 0), published.lookup, tmp_path / "cache")


def test_a_base_whose_index_leaves_the_folder_is_a_rejection(tmp_path: Path) -> None:
    published = Published(tmp_path)
    base = weights(tmp_path / "0/weights", 0)
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "0/other.safetensors")
    index = base / "model.safetensors.index.json"
    map_of = json.loads(index.read_bytes())["weight_map"]
    index.write_text(json.dumps({"weight_map": map_of | {"w": "../other.safetensors"}}))
    published.add(0)
    (tmp_path / "1/weights").mkdir(parents=True)
    for name, content in (("delta.json", b'{"pieces": []}'), ("delta.bin", b"")):
        (tmp_path / "1/weights" / name).write_bytes(content)
    with pytest.raises(VersionRejected, match="which is not a file of the folder"):
        fetch_version(published.add(1, "delta", 0), published.lookup, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("other.safetensors"))
