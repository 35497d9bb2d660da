"""Compare the configurations of two versions: what an engine computes with beside the weights.

vLLM reads a configuration once, at its start. A swap changes the weights alone.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepstream.services.inference.engine import CheckpointRefusedError

EOS = "eos_token_id"
_WITHOUT_EFFECT = frozenset(
    {
        "transformers_version", "_name_or_path", "name_or_path", "architectures", "dtype", "torch_dtype", "use_cache",
        "attn_implementation", "_attn_implementation", "_attn_implementation_internal", "return_dict",
        "output_attentions", "output_hidden_states", "initializer_range", "bos_token_id", "pad_token_id",
    }
)  # fmt: skip
"""Keys that change no sampled token of a served model with given weights."""


def read_config(folder: Path) -> dict[str, Any]:
    """Return what the engine computes with, by key, and the tokens that end a turn; empty: there is no `config.json`.

    Keys get their current names and defaults, as transformers gives them: the learner writes them so. Blocks for the
    import of transformers.

    Raises:
        CheckpointRefusedError: a file is not JSON with an object.
    """
    raw = _object(folder / "config.json")
    if raw is None:
        return {}
    normal = _normal(folder, raw)
    config: dict[str, Any] = _with_effect(normal)
    generation = _object(folder / "generation_config.json") or {}
    config[EOS] = sorted({token for one in (normal, generation) for token in _tokens(one.get(EOS))}, key=str)
    return config


def check_same_config(folder: Path, config: Mapping[str, Any], served: Mapping[str, Any]) -> None:
    """Check that an engine may swap to a version: it goes on with the configuration that it started with.

    Raises:
        CheckpointRefusedError: it differs; the message names the keys.
    """
    differing = sorted(key for key in config.keys() | served.keys() if config.get(key) != served.get(key))
    if differing:
        raise CheckpointRefusedError(
            f"{folder}: its configuration differs from the served version's in {', '.join(differing)}; "
            "start a new worker for it"
        )


def _normal(folder: Path, raw: dict[str, Any]) -> dict[str, Any]:
    try:
        from transformers import AutoConfig
    except ImportError:
        return raw
    try:
        normal: dict[str, Any] = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        ).to_dict()
    except Exception:  # a model that this release of transformers does not know: compare the file's own keys
        return raw
    return json.loads(json.dumps(normal, default=str))  # type: ignore[no-any-return]


def _with_effect(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_effect(one) for key, one in value.items() if key not in _WITHOUT_EFFECT and key != EOS}
    return value


def _tokens(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _object(file: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None: there is no such file."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointRefusedError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointRefusedError(f"{file} has no JSON object")
    return value
