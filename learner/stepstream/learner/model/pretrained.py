"""Load Hugging Face causal language models from a folder or the hub, and reject untrainable ones."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stepstream.versions.layout import indexed_files, weights_folder

_SHARD = "5GB"


class CannotTrain(Exception):
    """The learner cannot train the model; the message gives the reason."""


def load_model(folder: Path) -> Any:
    """Load the model of a folder in Hugging Face form, in float32 and without dropout.

    Raises:
        CannotTrain: it is not a causal language model, or its log-probabilities would differ from those that workers
            sample from.
    """
    from transformers import AutoModelForCausalLM, logging  # takes seconds to import

    logging.disable_progress_bar()
    # Without dropout the log-probabilities of one version are a function of the tokens alone.
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        attn_implementation=attention_of(config_of(folder)),
        dtype=torch.float32,
        local_files_only=True,
    ).eval()
    check_stateless(model, folder)
    return model


def attention_of(config: Any) -> str:
    """Return transformers' attention for a configuration: SDPA silently ignores caps."""
    return "sdpa" if getattr(config, "attn_logit_softcapping", None) is None else "eager"


def check_stateless(model: Any, folder: Path) -> None:
    """Check that a model keeps no state between tokens.

    Raises:
        CannotTrain: it does.
    """
    if getattr(model, "_is_stateful", False):
        raise CannotTrain(f"{folder}: {type(model).__name__} keeps a state between tokens; only attention is supported")


def config_of(folder: Path) -> Any:
    """Return the configuration of a model that the learner can train.

    Raises:
        CannotTrain: it cannot train this one.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CannotTrain(f"{folder}: its config.json cannot be used: {reason}") from None
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CannotTrain(f"{folder}: '{config.model_type}' is not a causal language model that transformers knows")
    if getattr(config, "quantization_config", None) is not None:
        raise CannotTrain(f"{folder}: its weights are quantised; give the model in bfloat16 or float32")
    if not isinstance(getattr(config, "max_position_embeddings", None), int):
        raise CannotTrain(f"{folder}: its config.json has no `max_position_embeddings`, the longest sequence")
    return config


def stored_dtype(folder: Path) -> torch.dtype:
    """Return the precision for published weights of a folder's model: bfloat16 if it is in bfloat16, else float32."""
    return torch.bfloat16 if config_of(folder).dtype == torch.bfloat16 else torch.float32


_IGNORED = ["*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.pth", "*.tflite", "onnx/*", "original/*"]
"""The same weights in unsupported forms."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")


@contextmanager
def model_folder(name: str) -> Iterator[Path]:
    """Yield the folder of a trainable model with weights in safetensors form; a temporary copy ends with the block.

    A name that is not a folder is fetched from the hub into the hub's own cache. `HF_HOME`, `HF_TOKEN` and
    `HF_ENDPOINT` apply as for every Hugging Face tool.

    Raises:
        CannotTrain: the model does not exist or cannot be trained; the message gives the reason.
    """
    folder = weights_folder(Path(name)) if Path(name).is_dir() else _fetch(name)
    config_of(folder)
    _check_tokenizer(folder)
    if indexed_files(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="stepstream-model-") as scratch:
        _convert(folder, Path(scratch))
        yield Path(scratch)


def _fetch(name: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, ignore_patterns=_IGNORED))
    except (OSError, ValueError) as error:  # base classes of the hub client's errors
        raise CannotTrain(
            f"{name} is not a folder, and it could not be fetched from the Hugging Face hub "
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


def _convert(folder: Path, target: Path) -> None:
    """Copy a model whose weights are in an older form, with the weights in safetensors form."""
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if config_of(folder).dtype == torch.bfloat16 else torch.float32
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CannotTrain(f"{folder}: its weights cannot be read: {str(error).splitlines()[0]}") from None
    model.save_pretrained(target, max_shard_size=_SHARD)
    written = {path.name for path in target.iterdir()}
    for path in folder.iterdir():
        if path.is_file() and path.name not in written and not any(path.match(each) for each in _WEIGHTS):
            shutil.copyfile(path, target / path.name)
