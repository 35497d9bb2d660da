"""Keep requests of the base model free of adapters on CPU, where vLLM 0.32 gives them those of the last slot.

vLLM marks tokens without adapters by the slot -1. Its operations for CPUs index the slots with it, so such tokens get
the adapters of the last slot when a batch has both kinds. The first of the two products, set to 0, makes the second 0.
"""

from typing import Any


def keep_base_free_of_adapters() -> None:
    """Patch vLLM's operations in this process; a second call has no effect."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    original = lora_ops.bgmv_shrink
    if getattr(original, "keeps_base", False):
        return

    def bgmv_shrink(inputs: Any, weights: Any, output: Any, slots: Any, scaling: float = 1.0) -> None:
        original(inputs, weights, output, slots, scaling)
        output[: slots.shape[0]][slots < 0] = 0

    bgmv_shrink.keeps_base = True  # type: ignore[attr-defined]
    lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = bgmv_shrink
