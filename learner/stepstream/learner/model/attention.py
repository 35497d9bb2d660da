"""Compute causal attention within the sequences of a pack (`packing.py`), as an attention function of transformers.

A run attends to itself and to the earlier runs of its sequences. No score is computed between sequences or for padding.

On CPU each run is one call on its own tokens, and one on all its descendants, which see every token of it. So a token's
attention is computed in parts, weighed by their logarithmic normalisers Z_i (as in ring attention, arXiv 2310.01889):
O = Σ_i exp(Z_i - Z) O_i with Z = log Σ_i exp(Z_i). The gradient of a part needs only O and Z of the whole.

On a GPU one call of the flash kernel for variable lengths takes all runs; keys of shared runs are repeated for it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepstream.learner.model.packing import Pack
from stepstream.learner.model.sequence_parallel import SplitRuns

NAME = "stepstream_pack"

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class NotPacked(Exception):
    """A model's attention cannot be computed in packs; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class FlashRuns:
    """A pack's runs in the form of the flash kernel on a GPU."""

    keys: Tensor | None
    """Inputs that the runs attend to, run after run; None: no run is shared. Shape [keys], int64."""
    ends: Tensor
    """Boundaries of the runs among the inputs. Shape [runs + 1], int32."""
    key_ends: Tensor
    """Boundaries of the runs among the keys. Shape [runs + 1], int32."""
    longest: int
    longest_keys: int

    @classmethod
    def of(cls, pack: Pack, device: torch.device) -> "FlashRuns":
        """Return the runs of a pack."""
        keys, sizes = pack.paths()
        starts, ends = pack.runs[:, 0], pack.runs[:, 1]
        shared = keys.size > pack.ids.size
        return cls(
            torch.from_numpy(keys).to(device) if shared else None,
            torch.tensor([0, *ends.tolist()], dtype=torch.int32, device=device),
            torch.tensor([0, *sizes.cumsum().tolist()], dtype=torch.int32, device=device),
            int((ends - starts).max()),
            int(sizes.max()),
        )


def register() -> None:
    """Register the function with transformers, as `NAME`."""
    from transformers import AttentionInterface  # takes seconds to import

    AttentionInterface.register(NAME, attend)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    runs: Tensor | FlashRuns | SplitRuns | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one layer; transformers calls it.

    Args:
        module: the layer's attention.
        query: shape [1, heads, length, head size].
        key: shape [1, key heads, length, head size].
        value: shape of `key`.
        attention_mask: None.
        scaling: factor of the scores.
        runs: runs of the pack, passed through the model; on a GPU their `FlashRuns`. `SplitRuns`: each rank of a
            sequence group passes its share of the tokens.
        more: arguments of other kinds of attention.

    Returns:
        Shape [1, length, heads, head size].

    Raises:
        NotPacked: the model does not pass `runs` on, or its attention is of another kind.
    """
    if runs is None:
        raise NotPacked("it does not pass its keyword arguments on to the attention")
    unusual = [name for name in ("softcap", "s_aux", "position_bias", "dropout") if more.get(name)]
    if unusual or attention_mask is not None or query.shape[-1] != value.shape[-1]:
        raise NotPacked(f"its attention has {', '.join(unusual) or 'a mask, or values of another size than keys'}")
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if isinstance(runs, SplitRuns):
        query, key, value = runs.ranks.tokens_for_heads(query, key, value)
        return runs.ranks.heads_for_tokens(_attention(query, key, value, runs.runs, scaling)), None
    return _attention(query, key, value, runs, scaling), None


def _attention(query: Tensor, key: Tensor, value: Tensor, runs: Tensor | FlashRuns, scaling: float | None) -> Tensor:
    if isinstance(runs, FlashRuns):
        return _flash(query, key, value, runs, scaling)[None]
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    output: Tensor = tree_attention(query, key, value, runs, scaling)[0]
    return output.transpose(1, 2)


def _flash(query: Tensor, key: Tensor, value: Tensor, runs: FlashRuns, scaling: float | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    if runs.keys is not None:
        k, v = k.index_select(0, runs.keys), v.index_select(0, runs.keys)
    output = varlen_attn(
        q, k, v, runs.ends, runs.key_ends, runs.longest, runs.longest_keys,
        scale=scaling, window_size=(-1, 0), enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    assert isinstance(output, Tensor)
    return output


@torch.library.custom_op("stepstream::tree_attention", mutates_args=(), device_types="cpu")
def tree_attention(
    query: Tensor, key: Tensor, value: Tensor, runs: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Compute the attention of packed runs.

    Args:
        query: shape [1, heads, length, head size]; `key` and `value` too.
        key: see `query`.
        value: see `query`.
        runs: see `Pack.runs`.
        scaling: factor of the scores; None: one over the square root of the head size.

    Returns:
        The output O, shaped like `query`, and Z, shape [1, heads, length], float32.
    """
    out, z = _empty(query), torch.empty(query.shape[:3], dtype=torch.float32)
    for start, end, _ in runs.tolist():
        own = slice(start, end)
        part = _forward(query[:, :, own], key[:, :, own], value[:, :, own], 0.0, True, scale=scaling)
        out[:, :, own], z[:, :, own] = part
    for start, end, last in runs.tolist():
        if last > end:
            own, below = slice(start, end), slice(end, last)
            part, part_z = _forward(query[:, :, below], key[:, :, own], value[:, :, own], 0.0, False, scale=scaling)
            old = z[:, :, below]
            new = torch.logaddexp(old, part_z)
            rescaled = out[:, :, below] * (old - new).exp_().unsqueeze(-1)
            out[:, :, below] = rescaled.addcmul_(part, (part_z - new).exp_().unsqueeze(-1))
            old.copy_(new)
    return out, z


@torch.library.custom_op("stepstream::tree_attention_backward", mutates_args=(), device_types="cpu")
def _tree_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, z: Tensor, runs: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = _empty(query), _empty(query), _empty(query)

    def part(rows: slice, keys: slice, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
        gradients: tuple[Tensor, Tensor, Tensor] = _backward(
            grad[:, :, rows], query[:, :, rows], key[:, :, keys], value[:, :, keys], out[:, :, rows], z[:, :, rows],
            0.0, causal, scale=scaling,
        )  # fmt: skip
        return gradients

    for start, end, _ in runs.tolist():
        own = slice(start, end)
        q[:, :, own], k[:, :, own], v[:, :, own] = part(own, own, causal=True)
    for start, end, last in runs.tolist():
        if last > end:
            own, below = slice(start, end), slice(end, last)
            of_query, of_key, of_value = part(below, own, causal=False)
            q[:, :, below] += of_query
            k[:, :, own] += of_key
            v[:, :, own] += of_value
    return q, k, v


def _empty(like: Tensor) -> Tensor:
    """Allocate a tensor of shape [1, heads, length, head size] with a token's heads adjacent in memory."""
    batch, heads, length, size = like.shape
    return torch.empty((batch, length, heads, size), dtype=like.dtype, device=like.device).transpose(1, 2)


@tree_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, runs: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
    return _empty(query), query.new_empty(query.shape[:3], dtype=torch.float32)


@_tree_attention_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, z: Tensor, runs: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(query), _empty(query), _empty(query)


def _save_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, runs, ctx.scaling = inputs
    ctx.save_for_backward(query, key, value, *output, runs)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    query, key, value, out, z, runs = ctx.saved_tensors
    return *_tree_attention_backward(grad, query, key, value, out, z, runs, ctx.scaling), None, None


tree_attention.register_autograd(_differentiate, setup_context=_save_inputs)
