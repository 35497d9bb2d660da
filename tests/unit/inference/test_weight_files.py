"""Read weights by index, and refuse what does not fit: other files, cut files, other shapes, NaN."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.weight_files import (
    check_adapters_fit,
    check_finite,
    check_same_shapes,
    read_weights,
)


def sharded(folder: Path, shards: Mapping[str, Mapping[str, torch.Tensor]]) -> Path:
    folder.mkdir()
    for file, tensors in shards.items():
        save_file(dict(tensors), folder / file)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_only_files_of_the_index_are_weights(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "v", {"a.safetensors": {"x": torch.ones(2, 3)}, "b.safetensors": {"y": torch.ones(4)}})
    save_file({"x.exp_avg": torch.full((2, 3), float("nan"))}, folder / "optimizer.safetensors")
    tensors = read_weights(folder)
    assert {name: entry.shape for name, entry in tensors.items()} == {"x": (2, 3), "y": (4,)}
    check_finite(folder, tensors)


def test_without_an_index_the_weights_are_one_file(tmp_path: Path) -> None:
    save_file({"x": torch.ones(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    save_file({"y": torch.ones(2)}, tmp_path / "optimizer.safetensors")
    assert read_weights(tmp_path).keys() == {"x"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_is_found_in_every_format(dtype: torch.dtype, value: float, tmp_path: Path) -> None:
    largest = torch.full((3, 5), torch.finfo(dtype).max, dtype=dtype)
    save_file({"x": largest, "y": torch.tensor([0.0, value]).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointRefusedError, match="y has a NaN or infinite value"):
        check_finite(tmp_path, read_weights(tmp_path))
    save_file({"x": largest, "z": torch.arange(3), "none": torch.ones(0)}, tmp_path / "model.safetensors")
    check_finite(tmp_path, read_weights(tmp_path))


def test_index_and_files_must_agree(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "v", {"a.safetensors": {"x": torch.ones(2)}})
    for weight_map, reason in (
        ({"x": "a.safetensors", "y": "a.safetensors"}, "differ in 1 tensors, as y"),
        ({"x": "missing.safetensors"}, "cannot be read"),
        ({"x": "../v/a.safetensors"}, "not a file of the folder"),
        ([], "cannot be read"),
    ):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(CheckpointRefusedError, match=reason):
            read_weights(folder)


@pytest.mark.parametrize("length", [0, 7, 50, -1])
def test_a_cut_file_is_refused(length: int, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(8)}, file)
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointRefusedError, match="cannot be read"):
        read_weights(tmp_path)


def test_other_names_and_shapes_are_refused(tmp_path: Path) -> None:
    def weights(name: str, tensors: dict[str, torch.Tensor]) -> Path:
        return sharded(tmp_path / name, {"a.safetensors": tensors})

    served = read_weights(weights("served", {"x": torch.ones(2, 3), "y": torch.ones(1)}))
    check_same_shapes(tmp_path, served, served)
    for name, tensors in (
        ("turned", {"x": torch.ones(3, 2), "y": torch.ones(1)}),
        ("less", {"x": torch.ones(2, 3)}),
        ("more", {"x": torch.ones(2, 3), "y": torch.ones(1), "z": torch.ones(1)}),
    ):
        folder = weights(name, tensors)
        with pytest.raises(CheckpointRefusedError, match="the served version's has"):
            check_same_shapes(folder, read_weights(folder), served)


def test_adapters_that_do_not_fit_their_base_are_refused(tmp_path: Path) -> None:
    """vLLM would serve a matrix that is too small, with zeros in the rest."""
    layer = "base_model.model.model.layers.0.mlp.up_proj"
    base = read_weights(
        sharded(tmp_path / "base", {"a.safetensors": {"model.layers.0.mlp.up_proj.weight": torch.ones(6, 4)}})
    )

    def check(a: tuple[int, ...] | None, b: tuple[int, ...] | None, *, turned: bool = False, name: str = layer) -> None:
        shapes = {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
        tensors = {key: torch.ones(shape) for key, shape in shapes.items() if shape is not None}
        save_file(tensors, tmp_path / "adapter_model.safetensors")
        (tmp_path / "adapter_config.json").write_text(json.dumps({"fan_in_fan_out": turned}))
        check_adapters_fit(tmp_path, read_weights(tmp_path, single="adapter_model.safetensors"), base)

    check((2, 4), (6, 2))
    check((2, 6), (4, 2), turned=True)
    check((2, 9), (9, 2), name="base_model.model.renamed")
    for a, b in (((2, 3), (6, 2)), ((2, 4), (5, 2)), ((2, 6), (4, 2))):
        with pytest.raises(CheckpointRefusedError, match=r"up_proj fit a weight of the shape .* has \(6, 4\)"):
            check(a, b)
    unlike: list[tuple[tuple[int, ...] | None, tuple[int, ...] | None]]
    unlike = [((2, 4), (6, 3)), ((2, 4), None), (None, (6, 2)), ((4,), (6, 2)), ((0, 4), (6, 0))]
    for first, second in unlike:
        with pytest.raises(CheckpointRefusedError, match=r"lora_A and lora_B of .*up_proj have the shapes"):
            check(first, second)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(CheckpointRefusedError, match=r"adapter_config\.json cannot be read"):
        check_adapters_fit(tmp_path, {}, base)
    for scale in ('{"lora_alpha": NaN, "r": 2}', '{"lora_alpha": 1e999, "r": 2}', '{"lora_alpha": "8", "r": 2}'):
        (tmp_path / "adapter_config.json").write_text(scale)
        with pytest.raises(CheckpointRefusedError, match=r"lora_alpha .* is not a finite number"):
            check_adapters_fit(tmp_path, {}, base)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    shards = {"a.safetensors": {"x": torch.ones(2), "y": torch.ones(2)}, "b.safetensors": {"x": torch.zeros(2)}}
    with pytest.raises(CheckpointRefusedError, match=r"x is in a\.safetensors and in b\.safetensors"):
        read_weights(sharded(tmp_path / "v", shards))


@pytest.mark.parametrize("header", [b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}', b"[" * 100_000])
def test_a_malformed_header_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointRefusedError, match="weights cannot be read"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2, -2], "data_offsets": [0, 16]},
        {"dtype": "BF16", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [2.0, 2], "data_offsets": [0, 16]},
        {"dtype": [], "shape": [4], "data_offsets": [0, 16]},
    ],
    ids=["larger than the file", "negative", "other type", "before the data", "fraction", "no type"],
)
def test_a_tensor_whose_shape_is_not_that_of_its_bytes_is_refused(tmp_path: Path, entry: dict[str, object]) -> None:
    """Else the check of its values would end the worker, or look at other bytes than the engine."""
    header = json.dumps({"y": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "x": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(CheckpointRefusedError, match="weights cannot be read"):
        read_weights(tmp_path)


def test_a_header_above_the_format_s_limit_is_not_read(tmp_path: Path) -> None:
    length = 100 * 10**6 + 1
    with (tmp_path / "model.safetensors").open("wb") as out:
        out.write(length.to_bytes(8, "little") + b"{}")
        out.truncate(8 + length)
    with pytest.raises(CheckpointRefusedError, match="its header would have 100000001 bytes"):
        read_weights(tmp_path)


def test_the_index_of_other_weights_says_nothing_about_adapters(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "v", {"a.safetensors": {"x": torch.ones(2)}})
    save_file({"y": torch.full((2,), float("nan"))}, folder / "adapter_model.safetensors")
    adapters = read_weights(folder, single="adapter_model.safetensors")
    assert adapters.keys() == {"y"}
    with pytest.raises(CheckpointRefusedError, match="y has a NaN"):
        check_finite(folder, adapters)
