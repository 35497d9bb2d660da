"""Hugging Face causal language models as files: what can be trained, loading it, and writing weights back.

Where a base model comes from: a folder, or a name on the Hugging Face hub.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WEIGHTS = "model.safetensors"


class CannotTrain(Exception):
    """A model that the learner does not know how to train; the message says why."""


def load_model(folder: Path) -> Any:
    """The model of a folder in Hugging Face form, in float32 and without dropout.

    Raises:
        CannotTrain: it is no causal language model, or one whose log-probabilities would not be what its workers
            sample from.
    """
    from transformers import AutoModelForCausalLM, logging  # takes seconds to import

    logging.disable_progress_bar()
    capped = getattr(config_of(folder), "attn_logit_softcapping", None) is not None
    # Without dropout the log-probabilities of one version are a function of the tokens alone.
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        attn_implementation="eager" if capped else "sdpa",  # SDPA leaves caps out, and says nothing
        dtype=torch.float32,
        local_files_only=True,
    ).eval()
    if getattr(model, "_is_stateful", False):
        raise CannotTrain(f"{folder}: {type(model).__name__} keeps a state between tokens; only attention is supported")
    return model


def config_of(folder: Path) -> Any:
    """The configuration of a model that the learner can train.

    Raises:
        CannotTrain: it cannot.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CannotTrain(f"{folder}: its config.json cannot be used: {str(error).splitlines()[0]}") from None
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CannotTrain(f"{folder}: '{config.model_type}' is not a causal language model that transformers knows")
    if getattr(config, "quantization_config", None) is not None:
        raise CannotTrain(f"{folder}: its weights are quantised; give the model in bfloat16 or float32")
    if not isinstance(getattr(config, "max_position_embeddings", None), int):
        raise CannotTrain(f"{folder}: its config.json has no `max_position_embeddings`, the longest sequence")
    return config


def stored_dtype(folder: Path) -> torch.dtype:
    """In which precision weights that come from a folder are written again: bfloat16 if they came so, else float32."""
    return torch.bfloat16 if config_of(folder).dtype == torch.bfloat16 else torch.float32


def save_model(model: Any, weights: Mapping[str, Tensor], dtype: torch.dtype, folder: Path) -> None:
    """Writes weights as one file, with the configuration, in the form that `model` was read in.

    The same values give the same bytes. `model` itself may be sharded or have adapters: only its kind matters.
    """
    with torch.device("meta"):
        form = type(model)._from_config(model.config, dtype=dtype)
    form._weight_conversions = getattr(model, "_weight_conversions", None)
    form.save_pretrained(
        folder,
        state_dict={
            name: weight.to(dtype) if weight.is_floating_point() else weight for name, weight in weights.items()
        },
        max_shard_size="1000GB",
    )
    (folder / "generation_config.json").unlink(missing_ok=True)  # no matter of the weights: the given one stays


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
