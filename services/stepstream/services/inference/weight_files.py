"""Read names, shapes and finiteness of a version's weights from its safetensors files, without torch.

`model.safetensors.index.json` lists the files that are served. A folder without an index has one file,
`model.safetensors`. Other files, such as an optimizer's state, are not weights.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepstream.services.inference.engine import CheckpointRefusedError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_CHUNK = 4 * 1024 * 1024  # values checked at once
_EXPONENTS: dict[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F8_E5M2": ("|u1", 0x7C),
    "F8_E4M3": ("|u1", 0x7F),
}
"""Integer view and exponent mask of each float format; a NaN or infinite value has all bits of the mask."""
_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "I8", "U8", "BOOL"), 1),
}
"""Bytes of a value. Engines read no tensors of other formats, or check these themselves."""
_MAX_HEADER = 100_000_000
"""Bytes; the safetensors library has the same limit."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a safetensors file."""

    file: Path
    dtype: str
    """In the format's words: `F32`, `BF16`."""
    shape: tuple[int, ...]
    start: int
    """First byte within the file."""
    end: int


def read_weights(folder: Path, *, single: str = SINGLE) -> dict[str, TensorEntry]:
    """Return the tensors that a version serves, by name.

    `single` is the file of a folder without an index. Another name than the default's is that of adapters: engines read
    no index of these.

    Raises:
        CheckpointRefusedError: the folder has no weights, a file is missing or cut, a tensor is in two files, or index
            and files differ.
    """
    try:
        expected = _index(folder) if single == SINGLE else {}
        files = sorted(set(expected.values())) if expected else [single]
        tensors: dict[str, TensorEntry] = {}
        for file in files:
            for name, entry in _entries(folder / file):
                if name in tensors:
                    raise ValueError(f"{name} is in {tensors[name].file.name} and in {file}")
                tensors[name] = entry
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointRefusedError(f"{folder}: weights cannot be read: {type(error).__name__} {error}") from error
    if not tensors:
        raise CheckpointRefusedError(f"{folder}: its weights have no tensor")
    if expected:
        located = {name: entry.file.name for name, entry in tensors.items()}
        differing = sorted(name for name in located.keys() | expected.keys() if located.get(name) != expected.get(name))
        if differing:
            raise CheckpointRefusedError(
                f"{folder}: {INDEX} and the files differ in {len(differing)} tensors, as {differing[0]}"
            )
    return tensors


def check_same_shapes(folder: Path, tensors: dict[str, TensorEntry], served: dict[str, TensorEntry]) -> None:
    """Compare names and shapes with the served version's.

    Raises:
        CheckpointRefusedError: they differ; the message names one tensor.
    """
    for name in sorted(tensors.keys() | served.keys()):
        shape = tensors[name].shape if name in tensors else None
        expected = served[name].shape if name in served else None
        if shape != expected:
            raise CheckpointRefusedError(
                f"{folder}: {name} has shape {shape}, the served version's has {expected}; start a new worker for it"
            )


def check_adapters_fit(folder: Path, adapters: dict[str, TensorEntry], base: dict[str, TensorEntry]) -> None:
    """Compare the shapes of adapters in PEFT's layout with the weights that they are added to.

    vLLM copies a matrix that is too small into its buffer without an error. Layers that the base's files name in
    another way than PEFT, or hold quantised, are vLLM's to check.

    Raises:
        CheckpointRefusedError: a matrix is missing or does not fit, and the message names its layer; or the scale is
            not finite.
    """
    try:
        config = json.loads((folder / "adapter_config.json").read_bytes())
        turned, scale = bool(config.get("fan_in_fan_out")), config.get("lora_alpha", 1)
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointRefusedError(f"{folder}: adapter_config.json cannot be read: {error}") from error
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise CheckpointRefusedError(f"{folder}: lora_alpha {scale!r} is not a finite number")
    ends = (".lora_A.weight", ".lora_B.weight")
    layers = {name.removesuffix(end) for name in adapters for end in ends if name.endswith(end)}
    for layer in sorted(layers):
        pair = [adapters.get(layer + end) for end in ends]
        a, b = ((0, 0) if entry is None else entry.shape for entry in pair)
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or not a[0]:
            raise CheckpointRefusedError(f"{folder}: lora_A and lora_B of {layer} have the shapes {a} and {b}")
        weight = base.get(f"{layer.removeprefix('base_model.model.')}.weight")
        change = (a[1], b[0]) if turned else (b[0], a[1])
        if weight is not None and weight.dtype in _EXPONENTS and weight.shape != change:
            raise CheckpointRefusedError(
                f"{folder}: the adapters of {layer} fit a weight of the shape {change}, the base's has {weight.shape}"
            )


def check_finite(folder: Path, tensors: dict[str, TensorEntry]) -> None:
    """Look at every value; reads all files once.

    Raises:
        CheckpointRefusedError: a value is NaN or infinite; the message names its tensor.
    """
    for name, entry in tensors.items():
        if entry.dtype in _EXPONENTS and entry.end > entry.start:
            view, mask = _EXPONENTS[entry.dtype]
            values = np.memmap(entry.file, np.dtype(view), "r", entry.start, (_count(entry.shape),))
            for first in range(0, len(values), _CHUNK):
                if ((values[first : first + _CHUNK] & mask) == mask).any():
                    raise CheckpointRefusedError(f"{folder}: {name} has a NaN or infinite value")


def _index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor; empty: the folder has no index."""
    file = folder / INDEX
    if not file.exists():
        return {}
    located: dict[str, str] = dict(json.loads(file.read_bytes())["weight_map"])
    for path in located.values():
        if Path(path).name != path:
            raise ValueError(f"{INDEX} names '{path}', which is not a file of the folder")
    return located


def _entries(file: Path) -> Iterator[tuple[str, TensorEntry]]:
    """Yield the tensors in a file's header; raises ValueError if the file is cut, or a shape is not its bytes'."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"{file.name} is not a safetensors file: its header would have {length} bytes")
        if not 0 < length <= size - 8:
            raise ValueError(f"{file.name} has {size} bytes, its header needs {length + 8}")
        header: dict[str, Any] = json.loads(stream.read(length))
    data = 8 + length
    header.pop("__metadata__", None)
    needed = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if data + needed != size:
        raise ValueError(f"{file.name} has {size} bytes, its header describes {data + needed}")
    for name, entry in header.items():
        (start, end), shape, dtype = entry["data_offsets"], tuple(entry["shape"]), entry["dtype"]
        is_counted = all(type(number) is int and number >= 0 for number in (start, end, *shape))
        expected = _BYTES.get(dtype, 0) * _count(shape)
        if not is_counted or start > end or (dtype in _BYTES and end - start != expected):
            raise ValueError(f"{name} of the shape {shape} in {dtype} has the bytes {start} to {end}")
        yield name, TensorEntry(file, dtype, shape, data + start, data + end)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
