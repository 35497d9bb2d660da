"""Split the tokens of a pack over the ranks of a sequence group (Ulysses; Jacobs et al. 2023, arXiv 2309.14509).

Each rank computes a share of the pack's tokens. Before the attention, the ranks exchange tokens for heads: each gets
all tokens of its share of the heads, so runs and shared prefixes are those of one rank. Afterwards they exchange back.
With n ranks, l = length / n and p = parts of `length` in the order of the ranks:

    [heads, l, size] → exchange → [heads / n, length, size] → attention → [length, heads / n, size] → exchange
    → [l, heads, size]

Key heads that n does not divide are repeated until it does: a rank then holds the key heads of its query heads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from stepstream.config import LearnerSettings
from stepstream.core.process import Fatal
from stepstream.learner.model.packing import Pack
from stepstream.learner.model.pretrained import CannotTrain


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Ranks that share the tokens of each pack. Every rank of the group must call each method."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    size: int = 1

    def pad(self, pack: Pack) -> Pack:
        """Return the pack with a multiple of `size` tokens: a run at the end whose results nobody uses."""
        missing = -pack.ids.size % self.size
        if not missing:
            return pack
        length = pack.ids.size + missing
        return replace(
            pack,
            ids=np.concatenate([pack.ids, np.zeros(missing, np.int64)]),
            positions=np.concatenate([pack.positions, np.arange(missing)]),
            runs=np.concatenate([pack.runs, [[pack.ids.size, length, length]]]),
        )

    def own_tokens(self, length: int) -> slice:
        """Return this rank's tokens of a padded pack."""
        share = length // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def prediction_ends(self, pack: Pack) -> list[int]:
        """Return the boundaries of the ranks' predictions, which are in the order of their inputs. Shape [size + 1]."""
        share = pack.ids.size // self.size
        ends: list[int] = np.searchsorted(pack.at, np.arange(self.size + 1) * share).tolist()
        return ends

    def join(self, own: Tensor, ends: Sequence[int]) -> Tensor:
        """Return the parts of all ranks, along the first dimension; the gradient flows to this rank's part only.

        Args:
            own: this rank's part.
            ends: boundaries of the parts.
        """
        if self.size == 1:
            return own
        sizes = [end - start for start, end in pairwise(ends)]
        padded = own.new_zeros((max(sizes), *own.shape[1:]))
        padded[: own.shape[0]] = own.detach()
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self.group)
        parts = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        parts[self.rank] = own
        return torch.cat(parts)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def tokens_for_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Exchange this rank's tokens of all heads for all tokens of its heads.

        Args:
            query: shape [1, heads, own tokens, head size].
            key: shape [1, key heads, own tokens, head size].
            value: shape of `key`.

        Returns:
            Queries, keys and values. Shapes [1, heads of this rank, length, head size].
        """
        copies = math.lcm(key.shape[1], self.size) // key.shape[1]
        parts = [query[0], *(each[0].repeat_interleave(copies, 0) for each in (key, value))]
        heads = [part.shape[0] // self.size for part in parts]
        by_rank = torch.cat([part.unflatten(0, (self.size, -1)) for part in parts], 1)
        whole = _Exchange.apply(by_rank, self.group)  # type: ignore[no-untyped-call]
        # Shape [ranks' tokens, heads of this rank, own tokens, size].
        joined = whole.transpose(0, 1).flatten(1, 2)[None]
        q, k, v = joined.split(heads, 1)
        return q, k, v

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def heads_for_tokens(self, output: Tensor) -> Tensor:
        """Exchange all tokens of this rank's heads for its tokens of all heads.

        Args:
            output: shape [1, length, heads of this rank, head size].

        Returns:
            Shape [1, own tokens, heads, head size].
        """
        by_rank = output[0].unflatten(0, (self.size, -1))
        whole: Tensor = _Exchange.apply(by_rank, self.group)  # type: ignore[no-untyped-call]
        return whole.transpose(0, 1).flatten(1, 2)[None]


ALONE = SequenceGroup()
"""A rank that computes whole packs."""


@dataclass(frozen=True, slots=True)
class SplitRuns:
    """Runs of a pack whose tokens are split over a sequence group."""

    runs: Any
    """Runs of the whole pack, in the form of the device."""
    ranks: SequenceGroup


def sequence_group(model: Any, config: LearnerSettings) -> SequenceGroup:
    """Return the ranks that share packs of a model with this one.

    Raises:
        Fatal: the number of ranks is no multiple of `learner.sequence_parallel`.
        CannotTrain: it does not divide the model's attention heads.
    """
    size = config.sequence_parallel
    if size == 1:
        return ALONE
    if dist.get_world_size() % size:
        raise Fatal(
            f"{dist.get_world_size()} ranks: start a multiple of learner.sequence_parallel={size}, or set it to 1"
        )
    if (heads := model.config.get_text_config().num_attention_heads) % size:
        raise CannotTrain(
            f"learner.sequence_parallel={size} does not divide the model's {heads} attention heads: set a divisor"
        )
    return _group(config.device, dist.get_world_size(), size)


@cache
def _group(device: str, ranks: int, size: int) -> SequenceGroup:
    """Return the group of consecutive ranks, which share a node's fast links; policy and reference use the same."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device, (ranks // size, size), mesh_dim_names=("packs", "tokens"))["tokens"]
    return SequenceGroup(mesh.get_group(), mesh.get_local_rank(), size)


class _Exchange(torch.autograd.Function):
    """Send the n-th part along the first dimension to rank n; receive this rank's part of all ranks, in order."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _exchange(parts, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchange(grads[0], ctx.group), None


def _exchange(parts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received
