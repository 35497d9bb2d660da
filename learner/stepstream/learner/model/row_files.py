"""Write safetensors files from several ranks: each rank writes the rows that it holds at their place in the file.

The files have the bytes that `safetensors.save_file` writes from whole tensors, so that neither digests nor readers
depend on the number of ranks. No rank needs more than its own rows.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from torch import Tensor

# The order of the format's own writer: tensors lie by type, in the reverse of this order, then by name.
_TYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
_RANK = {dtype: rank for rank, dtype in enumerate(reversed(_TYPES))}
_CHUNK = 1 << 30
FILE_BYTES = 5 * 10**9
"""Size above which tensors are written to several files."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor, and the rows of it that this rank writes."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    dtype: torch.dtype
    """Type in the file."""
    first: int
    """First row that this rank writes."""
    read: Callable[[], Tensor] | None
    """Returns the rows, of any type and on any device; None: another rank writes this tensor."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


class RowFile:
    """A safetensors file; `create` it on one rank, then `write` on every rank."""

    def __init__(self, name: str, tensors: Mapping[str, Rows], *, marked: bool = False) -> None:
        """Lay out the file.

        Args:
            name: path below the version's folder.
            tensors: tensors by name.
            marked: write the metadata `format: pt`, as transformers does for a model's weights.
        """
        self.name, self._tensors = name, tensors
        header: dict[str, object] = {"__metadata__": {"format": "pt"}} if marked else {}
        self._begin: dict[str, int] = {}
        end = 0
        for key in sorted(tensors, key=lambda each: (_RANK[tensors[each].dtype], each.encode())):
            rows = tensors[key]
            self._begin[key] = end
            end += rows.nbytes
            offsets = [self._begin[key], end]
            header[key] = {"dtype": _TYPES[rows.dtype], "shape": list(rows.shape), "data_offsets": offsets}
        content = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        content += b" " * (-len(content) % 8)
        self._header = len(content).to_bytes(8, "little") + content
        self._size = len(self._header) + end

    def create(self, folder: Path) -> None:
        """Create the file with its header and its final size."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(self._header)
            file.truncate(self._size)

    def write(self, folder: Path) -> None:
        """Write this rank's rows and sync the file; does nothing if it has none.

        Raises:
            OSError: the file cannot be written.
        """
        if all(rows.read is None for rows in self._tensors.values()):
            return
        handle = os.open(folder / self.name, os.O_WRONLY)
        try:
            for name, rows in self._tensors.items():
                if rows.read is not None:
                    row = math.prod(rows.shape[1:]) * rows.dtype.itemsize
                    start = len(self._header) + self._begin[name] + rows.first * row
                    _write_at(handle, rows.read().to(rows.dtype), start)
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_at(handle: int, value: Tensor, position: int) -> None:
    if not value.numel():
        return
    array: Any = value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    content = memoryview(array)
    while content:
        written = os.pwrite(handle, content[:_CHUNK], position)
        content, position = content[written:], position + written


def split_files(folder: str, tensors: Mapping[str, Rows], pattern: str, *, marked: bool = False) -> list[RowFile]:
    """Return one file of tensors, or several below `FILE_BYTES`, as transformers splits them.

    Args:
        folder: folder below the version's.
        tensors: tensors by name, in the order of the files.
        pattern: name of a file, with `{suffix}`.
        marked: see `RowFile`.
    """
    if not tensors:
        return []
    split = split_state_dict_into_shards_factory(
        dict(tensors), get_storage_size=lambda rows: rows.nbytes, filename_pattern=pattern, max_shard_size=FILE_BYTES
    )
    return [
        RowFile(f"{folder}/{name}", {each: tensors[each] for each in names}, marked=marked)
        for name, names in split.filename_to_tensors.items()
    ]
