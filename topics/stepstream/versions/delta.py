"""Write a version's weights as the difference from its base's, and rebuild them bit for bit.

The bytes of each tensor are XORed with the base's and compressed (zstd, level 1): after a small step most bits are the
same. `delta.json` lists the pieces and the SHA-256 of each tensor, `delta.bin` has their bytes.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepstream.versions.layout import header_of, indexed_files

INDEX, DATA = "delta.json", "delta.bin"


class DeltaMismatch(Exception):
    """The base is not the one that a delta was made from, or the delta is damaged; the message names the tensor."""


def write_delta(weights: Path, base: Path, target: Path) -> bool:
    """Write the difference of two Hugging Face folders' weights into `target`.

    Returns:
        False if their files or tensors differ in name, shape or type: then nothing was written.
    """
    files = indexed_files(weights)
    if files != indexed_files(base) or any(_header(weights / name) != _header(base / name) for name in files):
        return False
    import zstandard  # an extra, as numpy

    compressor = zstandard.ZstdCompressor(level=1)
    pieces: list[dict[str, Any]] = []
    position = 0
    with (target / DATA).open("wb") as out:
        for file in files:
            with (weights / file).open("rb") as new, (base / file).open("rb") as old:
                for name, start, end in _tensors(weights / file):
                    value = _read(new, start, end)
                    packed = compressor.compress(_xor(value, _read(old, start, end)))
                    out.write(packed)
                    pieces.append(
                        {
                            "file": file,
                            "tensor": name,
                            "sha256": hashlib.sha256(value).hexdigest(),
                            "offset": position,
                            "size": len(packed),
                        }
                    )
                    position += len(packed)
    (target / INDEX).write_text(json.dumps({"form": 1, "pieces": pieces}, indent=1) + "\n")
    return True


def apply_delta(delta: Path, base: Path, target: Path) -> None:
    """Write the weights that a delta describes into `target`.

    Raises:
        DeltaMismatch: a tensor comes out different from the published one.
        OSError: a file cannot be read.
    """
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    pieces: dict[tuple[str, str], dict[str, Any]] = {
        (piece["file"], piece["tensor"]): piece for piece in json.loads((delta / INDEX).read_bytes())["pieces"]
    }
    with (delta / DATA).open("rb") as packed:
        for file in indexed_files(base):
            shutil.copyfile(base / file, target / file)
            with (target / file).open("r+b") as out:
                for name, start, end in _tensors(base / file):
                    piece = pieces.pop((file, name), None)
                    if piece is None:
                        raise DeltaMismatch(f"the delta has no tensor {name} of {file}")
                    content = _read(packed, piece["offset"], piece["offset"] + piece["size"])
                    try:
                        size = zstandard.frame_content_size(content)
                        if size != end - start:  # else a few bytes could ask for any amount of memory
                            raise DeltaMismatch(f"tensor {name} of {file} has {end - start} bytes, its delta {size}")
                        change = decompressor.decompress(content)
                    except zstandard.ZstdError as error:
                        raise DeltaMismatch(f"tensor {name} of {file} cannot be decompressed: {error}") from None
                    value = _xor(change, _read(out, start, end))
                    if hashlib.sha256(value).hexdigest() != piece["sha256"]:
                        raise DeltaMismatch(f"tensor {name} of {file} comes out different: the base is another one")
                    out.seek(start)
                    out.write(value)
    if pieces:
        raise DeltaMismatch(f"the base has no tensor {next(iter(pieces))[1]}")


def _xor(one: bytes, other: bytes) -> bytes:
    import numpy as np

    return (np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)).tobytes()


def _read(stream: Any, start: int, end: int) -> bytes:
    stream.seek(start)
    content: bytes = stream.read(end - start)
    return content


def _header(file: Path) -> tuple[int, bytes]:
    with file.open("rb") as stream:
        return file.stat().st_size, stream.read(int.from_bytes(stream.read(8), "little"))


def _tensors(file: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and last byte of each tensor of a safetensors file, in the order of the bytes."""
    with file.open("rb") as stream:
        begin = 8 + int.from_bytes(stream.read(8), "little")
    tensors = [(name, entry["data_offsets"]) for name, entry in header_of(file).items() if name != "__metadata__"]
    for name, (start, end) in sorted(tensors, key=lambda tensor: (tensor[1], tensor[0])):
        yield name, begin + start, begin + end
