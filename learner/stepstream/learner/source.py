"""Where a base model comes from: a folder, or a name on the Hugging Face hub."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from stepstream.learner.pretrained import WEIGHTS, CannotTrain, config_of

_NOT_NEEDED = ["*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.pth", "*.tflite", "onnx/*", "original/*"]
"""The same weights in forms that are not read here."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")


@contextmanager
def model_folder(name: str) -> Iterator[Path]:
    """The folder of a model that can be trained, with its weights in one file; gone with the block if it was made.

    A name that is no folder is fetched from the hub, into the hub's own cache; `HF_HOME`, `HF_TOKEN` and `HF_ENDPOINT`
    mean what they mean to every Hugging Face tool.

    Raises:
        CannotTrain: there is no such model, or not one that can be trained; the message says why.
    """
    folder = Path(name) if Path(name).is_dir() else _fetched(name)
    config_of(folder)
    _check_tokenizer(folder)
    if (folder / WEIGHTS).is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="stepstream-model-") as scratch:
        _join(folder, Path(scratch))
        yield Path(scratch)


def _fetched(name: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, ignore_patterns=_NOT_NEEDED))
    except (OSError, ValueError) as error:  # what the hub's client raises are kinds of these
        raise CannotTrain(
            f"{name} is no folder here, and the Hugging Face hub does not give it "
            f"({type(error).__name__}: {str(error).splitlines()[0]})"
        ) from None


def _check_tokenizer(folder: Path) -> None:
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise CannotTrain(
            f"{folder} has no tokenizer that transformers can load: {str(error).splitlines()[0]}"
        ) from None


def _join(folder: Path, target: Path) -> None:
    """Copies a model whose weights are in several files, or in an older form."""
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if config_of(folder).dtype == torch.bfloat16 else torch.float32
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CannotTrain(f"{folder}: its weights cannot be read: {str(error).splitlines()[0]}") from None
    model.save_pretrained(target, max_shard_size="1000GB")
    written = {path.name for path in target.iterdir()}
    for path in folder.iterdir():
        if path.is_file() and path.name not in written and not any(path.match(each) for each in _WEIGHTS):
            shutil.copyfile(path, target / path.name)
