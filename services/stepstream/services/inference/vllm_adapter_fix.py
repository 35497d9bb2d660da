"""Multiply adapters on a CPU by matrix products; vLLM 0.32 copies the adapters' weights for each token first.

vLLM marks tokens without adapters by the slot -1 and indexes the slots with it, so such tokens get the adapters of the
last slot when a batch has both kinds. Here they get none.
"""

from collections.abc import Iterator
from typing import Any


def multiply_adapters_by_slot() -> None:
    """Replace vLLM's operations for CPUs in this process; a second call has no effect."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    for operation in (bgmv_shrink, bgmv_expand, bgmv_expand_slice):
        setattr(lora_ops, operation.__name__, operation)
        setattr(punica_cpu, operation.__name__, operation)


def bgmv_shrink(inputs: Any, weights: Any, output: Any, slots: Any, scaling: float = 1.0) -> None:
    """Set each row of `output` to A·x · `scaling`, A by the row's slot; 0 without adapters."""
    output[: slots.shape[0]] = 0
    for rows, weight in _by_slot(weights, slots):
        output[rows, : weight.shape[0]] = scaling * (inputs[rows].to(output.dtype) @ weight.t().to(output.dtype))


def bgmv_expand(inputs: Any, weights: Any, output: Any, slots: Any, add_inputs: bool = True) -> None:
    """Add B·x to each row of `output`, or set it, B by the row's slot."""
    bgmv_expand_slice(inputs, weights, output, slots, 0, min(weights.shape[-2], output.shape[1]), add_inputs)


def bgmv_expand_slice(
    inputs: Any, weights: Any, output: Any, slots: Any, offset: int, size: int, add_inputs: bool = True
) -> None:
    """Add B·x to columns [offset, offset + size) of each row of `output`, or set them, B by the row's slot."""
    columns = output[: slots.shape[0], offset : offset + size]
    if not add_inputs:
        columns.zero_()
    for rows, weight in _by_slot(weights, slots):
        columns[rows] += inputs[rows].to(output.dtype) @ weight[:size].t().to(output.dtype)


def _by_slot(weights: Any, slots: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the rows of each slot and its weights [out, in]; a slice if all rows have one slot."""
    weights = weights.flatten(0, 1) if weights.ndim == 4 else weights
    if not slots.shape[0]:
        return
    first = int(slots[0])
    if bool((slots == first).all()):
        if first >= 0:
            yield slice(0, slots.shape[0]), weights[first]
        return
    for slot in slots.unique().tolist():
        if slot >= 0:
            yield (slots == slot).nonzero().squeeze(1), weights[slot]
