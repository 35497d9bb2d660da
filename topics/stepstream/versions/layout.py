"""Lay out a version's files: `weights/` is what workers serve, `training/` is the learner's alone.

    weights/    config.json, generation_config.json, tokenizer and chat template, and the weights as `model.safetensors`
                or as shards. `model.safetensors.index.json` always names the files that hold weights, so that no loader
                takes another file for weights.
    training/   optimizer.safetensors, critic.safetensors, and adapter/ and base/ of a version with adapters

Each file has a role, from which a reader knows whether it needs the file. Versions of before this layout have all files
in one folder; their roles follow from the names.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from stepstream.topics.events import Checkpoint, CheckpointFile

WEIGHTS, TRAINING = "weights", "training"
INDEX = "model.safetensors.index.json"
SERVED_ROLES = frozenset({"weights", "tokenizer", "config"})
"""Roles of the files that an engine loads."""
LOADED_ROLES = SERVED_ROLES | {"adapter", "delta"}
"""Roles of the files that a worker loads or completes a version from."""

_TRAINING_NAMES = ("optimizer.safetensors", "critic.safetensors", "adapter", "base")
_TOKENIZER_WORDS = ("token", "template", "vocab", "merges", "tekken", "sentencepiece", ".jinja", "spiece")


_NUMBER = re.compile("[0-9]{1,9}")
"""Digits that an integer of 32 bits holds; `str.isdigit` takes characters that `int` refuses."""


class VersionRejected(Exception):
    """A version's files cannot be used; the message names the version, the file and the fault."""


class NotStored(VersionRejected):
    """This machine cannot hold a version's files, as on a full disk; the version may be sound."""


def name_of(checkpoint: Checkpoint) -> str:
    """Return `MODEL@VERSION`."""
    return f"{checkpoint['model']}@{checkpoint['version']}"


def read_name(name: str) -> tuple[str, int] | None:
    """Return model and version of `MODEL@VERSION`; None: it has another form."""
    model, _, number = name.rpartition("@")
    return (model, int(number)) if model and _NUMBER.fullmatch(number) else None


def folder_name(version: int, event_id: str) -> str:
    """Return the name of a version's folder, as `7-3f9c1b2a4d5e`: the id's last digits are random."""
    return f"{version}-{event_id.replace('-', '')[-12:]}"


def weights_folder(folder: Path) -> Path:
    """Return the part of a version's folder that is in Hugging Face form; the folder itself in the old layout."""
    part = folder / WEIGHTS
    return part if part.is_dir() else folder


def training_folder(folder: Path) -> Path:
    """Return the part of a version's folder with the training state; the folder itself in the old layout."""
    return folder / TRAINING if (folder / WEIGHTS).is_dir() else folder


def served_path(path: str) -> str:
    """Return a file's path below the Hugging Face folder."""
    return path.removeprefix(f"{WEIGHTS}/")


def role_of(file: CheckpointFile) -> str:
    """Return the role of a file in an event."""
    return file["role"] or role_of_path(file["path"])


def role_of_path(path: str) -> str:
    """Return the role of a file by its path below the version's folder."""
    first, *rest = PurePosixPath(path).parts
    if first == TRAINING or first in _TRAINING_NAMES:
        return "training"
    if first == WEIGHTS and rest:
        first, *rest = rest
        if first == "adapter":
            return "adapter"
    if not rest and first.startswith("delta."):
        return "delta"
    name = PurePosixPath(path).name
    if name.endswith(".safetensors") or name == INDEX:
        return "weights"
    return "tokenizer" if any(word in name for word in _TOKENIZER_WORDS) or name.endswith(".model") else "config"


def is_safe(path: str) -> bool:
    """Return True if a file's path stays below the version's folder on every system."""
    return is_inside(path) and not any(char in path for char in "\\:")


def is_inside(name: str) -> bool:
    """Return True if a folder of this name, as a model's, stays below its parent on this machine."""
    return not any(part in ("", ".", "..") for part in name.split("/")) and "\0" not in name


def check_paths(checkpoint: Checkpoint) -> None:
    """Check the paths of an event.

    Raises:
        VersionRejected: a path leaves the version's folder, is there twice, or no file has weights.
    """
    name, seen = name_of(checkpoint), set[str]()
    for file in checkpoint["files"]:
        if not is_safe(file["path"]):
            raise VersionRejected(f"{name}: the file name '{file['path']}' leaves the version's folder")
        if file["path"] in seen:
            raise VersionRejected(f"{name}: its event lists {file['path']} twice")
        seen.add(file["path"])
    if not any(role_of(file) in ("weights", "adapter", "delta") for file in checkpoint["files"]):
        raise VersionRejected(f"{name}: its event lists no file with weights")


def weights_sha256(files: Iterable[CheckpointFile]) -> str:
    """Return the digest of a version's weights.

    It is the SHA-256 of `model.safetensors`; of several files it is the SHA-256 of the lines `SHA256  PATH`, by path
    below the Hugging Face folder.
    """
    digests = {
        served_path(file["path"]): file["sha256"]
        for file in files
        if role_of(file) in ("weights", "adapter") and file["path"].endswith(".safetensors")
    }
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def indexed_files(folder: Path) -> list[str]:
    """Return the names of the files that hold the weights of a Hugging Face folder, in order; empty: there are none.

    Raises:
        ValueError: the index is malformed, or names a file that is not directly in the folder.
    """
    index = folder / INDEX
    if index.is_file():
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        for name in names:
            if not isinstance(name, str) or "/" in name or not is_safe(name):
                raise ValueError(f"{INDEX} names '{name}', which is not a file of the folder")
        return sorted(names)
    return ["model.safetensors"] if (folder / "model.safetensors").is_file() else []


def index_of(files: Iterable[Path]) -> bytes:
    """Return the index of safetensors files in one folder: the file of each tensor and the tensors' size.

    Raises:
        ValueError: a file is not in safetensors form.
    """
    weight_map: dict[str, str] = {}
    size = 0
    for file in sorted(files):
        for name, tensor in header_of(file).items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                size += end - start
                weight_map[name] = file.name
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2).encode() + b"\n"


def header_of(file: Path) -> dict[str, dict[str, list[int]]]:
    """Return the header of a safetensors file: an entry by tensor, and `__metadata__`.

    Raises:
        ValueError: the file is not in safetensors form.
    """
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(file.stat().st_size, 100 << 20):
            raise ValueError(f"{file} is not a safetensors file: its header would have {length} bytes")
        header: dict[str, dict[str, list[int]]] = json.loads(stream.read(length))
    return header
