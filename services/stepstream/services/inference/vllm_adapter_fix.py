"""Multiply adapters on a CPU by matrix products; vLLM 0.32 copies the adapters' weights for each token first.

vLLM marks tokens without adapters by the slot -1 and indexes the slots with it, so such tokens get the adapters of the
last slot when a batch has both kinds. Here they get none.

Most batches have one adapter. Their slot is found once a step, and each product then takes two operations of torch.
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
    wrapper = punica_cpu.PunicaWrapperCPU
    if not hasattr(wrapper, "common_slot"):
        _find_common_slots(wrapper)


def _find_common_slots(wrapper: Any) -> None:
    """Let vLLM's wrapper of these operations keep the slot of a batch with one adapter, and multiply by it directly."""
    update_metadata, add_lora_linear = wrapper.update_metadata, wrapper.add_lora_linear

    def update(self: Any, *args: Any, **kwargs: Any) -> None:
        update_metadata(self, *args, **kwargs)
        self.common_slot = common_slot(self.token_lora_indices)

    def add_linear(
        self: Any, y: Any, x: Any, a: Any, b: Any, scale: float, sizes: tuple[int, ...], **others: Any
    ) -> None:
        rows = self.indices_len[0]
        if self.common_slot is None or y.ndim != 2 or y.dtype != x.dtype or y.dtype != a[0].dtype:
            add_lora_linear(self, y, x, a, b, scale, sizes, **others)
        elif self.common_slot >= 0:
            add_products(y[:rows], x[:rows], a, b, self.common_slot, scale, sizes)

    wrapper.common_slot = None
    wrapper.update_metadata, wrapper.add_lora_linear = update, add_linear


def common_slot(slots: Any) -> int | None:
    """Return the slot of all tokens, -1 if none has an adapter; None if they differ."""
    if not slots.shape[0]:
        return -1
    first = int(slots[0])
    return first if bool((slots == first).all()) else None


def add_products(
    y: Any, x: Any, a: tuple[Any, ...], b: tuple[Any, ...], slot: int, scale: float, sizes: tuple[int, ...]
) -> None:
    """Add B·A·x · `scale` to `y`, each pair of A and B to the next columns.

    Args:
        y: [rows, sum of `sizes`], changed in place.
        x: [rows, in].
        a: for each pair, [slots, 1, rank, in].
        b: for each pair, [slots, 1, size, rank].
        slot: the slot of all rows.
        scale: factor of the products.
        sizes: columns of each pair.
    """
    offset = 0
    for first, second, size in zip(a, b, sizes, strict=True):
        y[:, offset : offset + size].addmm_(x @ first[slot, 0].t(), second[slot, 0].t(), alpha=scale)
        offset += size


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
    slot = common_slot(slots)
    if slot is not None:
        if slot >= 0:
            yield slice(0, slots.shape[0]), weights[slot]
        return
    for slot in slots.unique().tolist():
        if slot >= 0:
            yield (slots == slot).nonzero().squeeze(1), weights[slot]
