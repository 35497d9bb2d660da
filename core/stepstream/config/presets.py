"""Define the presets of the learner: values by size of the model for settings that are not given. Pure.

`learner.preset` names one. The declared defaults are those of the preset `full`; the others list what differs.
"""

from collections.abc import Mapping
from typing import Any, Literal

Preset = Literal["auto", "tiny", "lora", "full"]

_TINY: dict[str, Any] = {
    "group_wait_s": 30.0,
    "updates_per_checkpoint": 2,
    "learning_rate": 3e-4,
    "warmup_updates": 5,
    "weight_decay": 0.0,
    "adam_beta2": 0.95,
    "microbatch_tokens": 4096,
    "loss_length": 64,
    "activation_checkpointing": False,
}
_LORA: dict[str, Any] = {"learning_rate": 1e-5, "weight_decay": 0.0, "lora_rank": 16, "lora_alpha": 32.0}

PRESETS: Mapping[str, Mapping[str, Any]] = {"tiny": _TINY, "lora": _LORA, "full": {}}
"""Values by preset and setting, where they differ from the declared defaults.

The values of `tiny` never change: a version that names no preset was trained with them.
"""


def with_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return given settings of the learner together with the values of their preset for settings not given.

    The preset `auto` is `lora` where `lora_rank` is above 0, else `full`.
    """
    return {**PRESETS.get(preset_of(values), {}), **values}


def preset_of(values: Mapping[str, Any]) -> str:
    """Return the name of the preset of given settings of the learner; unknown names are returned as they are."""
    name = str(values.get("preset", "auto"))
    if name != "auto":
        return name
    return "full" if str(values.get("lora_rank", 0)) == "0" else "lora"
