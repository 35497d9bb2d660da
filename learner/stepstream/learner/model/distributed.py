"""Several processes that train one model: who they are, and how weights and gradients are shared among them.

Weights, gradients and optimizer state are sharded (FSDP2). On CPU the ranks of a power of two come to the same bits as
one process alone: every forward pass is computed whole by one rank, in a split that does not depend on their number,
and gradients are added up along one fixed tree (tree_sum.py).

A sum whose last bits do not depend on who added which part.

Floating-point addition is not associative. Parts are therefore added as the leaves of one fixed binary tree, in which
a run of 2^k parts that begins at a multiple of 2^k is a subtree. Whoever holds such a run may add it up alone: one
process, or 2^k of them with a part each, come to the same bits.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepstream.core.process import Fatal


class TreeSum:
    """A running sum of lists of tensors; holds at most log2(parts) + 1 partial sums."""

    def __init__(self) -> None:
        self._partial: list[tuple[int, list[Tensor]]] = []

    def add(self, tensors: list[Tensor], parts: int = 1) -> None:
        """Adds the sum of the next `parts` parts: a power of two, except for the last ones.

        The tensors belong to the sum from then on and are overwritten.
        """
        while self._partial and self._partial[-1][0] == parts:
            tensors = _added(self._partial.pop()[1], tensors)
            parts *= 2
        self._partial.append((parts, tensors))

    def total(self) -> list[Tensor]:
        """The sum of all parts, which starts anew; empty where there were none."""
        total: list[Tensor] = []
        while self._partial:
            _, earlier = self._partial.pop()
            total = _added(earlier, total) if total else earlier
        return total


def tree_sum(parts: Iterable[Tensor]) -> Tensor:
    """The sum of tensors of one shape; overwrites them."""
    running = TreeSum()
    for part in parts:
        running.add([part])
    return running.total()[0]


def _added(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    torch._foreach_add_(left, right)
    return left


T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_HUNG = timedelta(minutes=30)
"""After which a rank that does not answer in the midst of an update ends the others."""
_FOR_EVER = timedelta(days=3650)
"""How long the others wait for what rank 0 has them do next: until there is something to train on."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many processes train together, and which of them this one is."""

    rank: int = 0
    size: int = 1

    def rounds(self, batches: int) -> Iterator[tuple[int, int]]:
        """Deals batches out, one a rank and round, in order.

        Yields:
            Index of this rank's batch, and how many ranks have one in this round. A rank at or beyond that number
            gets the round's first batch: it must compute along, since weights are gathered together, but to no effect.
        """
        for first in range(0, batches, self.size):
            present = min(self.size, batches - first)
            yield first + (self.rank if self.rank < present else 0), present

    def gathered(self, of_rounds: Sequence[T], batches: int) -> list[T]:
        """What all ranks found in their rounds, one for each batch, in the order of the batches."""
        if self.size == 1:
            return list(of_rounds)
        all_of: list[list[T]] = [[] for _ in range(self.size)]
        dist.all_gather_object(all_of, list(of_rounds))
        return [all_of[batch % self.size][batch // self.size] for batch in range(batches)]


def current_ranks() -> Ranks:
    """The ranks that this process has joined; itself alone where it has joined none."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Joins the ranks that torchrun's environment names; without one this process trains alone.

    Raises:
        Fatal: their number is not a power of two.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    if size & (size - 1):
        raise Fatal(f"{size} ranks: start a power of two of them, as 2, 4 or 8; only these give the same bits as one")
    _end_with_launcher()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=_HUNG)
    _Orders.group = dist.new_group(timeout=_FOR_EVER, backend="gloo")
    yield current_ranks()
    dist.destroy_process_group()  # not after a fault: it would wait for ranks that wait for this one


def broadcast(order: Any) -> None:
    """In rank 0: passes on anything that can be pickled to the other ranks."""
    dist.broadcast_object_list([order], 0, _Orders.group)


def receive() -> Any:
    """In the other ranks: waits for what rank 0 passes on.

    Raises:
        Fatal: it is gone.
    """
    heard = [None]
    try:
        dist.broadcast_object_list(heard, 0, _Orders.group)
    except RuntimeError as error:
        raise Fatal(f"rank 0 is gone ({str(error).splitlines()[0]})") from None
    return heard[0]


def shard(module: nn.Module, blocks: Sequence[nn.Module], device: str) -> None:
    """Shards a module's weights over all ranks, block by block; gradients are then sums over the ranks.

    Args:
        module: through whose forward the weights are used.
        blocks: parts of it whose weights are gathered and let go of together, in the order of use.
        device: type of the device that the weights are on, `cpu` or `cuda`.
    """
    from torch.distributed.device_mesh import init_device_mesh  # these take seconds to import
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        part.set_reduce_scatter_unused_params(True)
        if device == "cpu":
            part.set_custom_reduce_scatter(cast(Any, _ORDERED))


def present_ranks(count: int) -> None:
    """Says how many ranks have a batch in the round whose gradients come next."""
    _ORDERED.present = count


def local(tensor: Tensor) -> Tensor:
    """This rank's shard; a tensor that is not sharded itself."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor. Every rank must ask for it."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_like(value: Tensor, pattern: Tensor) -> Tensor:
    """A whole tensor, which every rank has, in the shards of another."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(pattern, DTensor):
        return value
    return distribute_tensor(value, pattern.device_mesh, pattern.placements, src_data_rank=None)


def from_shard(value: Tensor, pattern: Tensor) -> Tensor:
    """This rank's shard as a part of a tensor that is sharded like another."""
    from torch.distributed.tensor import DTensor

    if not isinstance(pattern, DTensor):
        return value
    return DTensor.from_local(
        value, pattern.device_mesh, pattern.placements, run_check=False, shape=pattern.shape, stride=pattern.stride()
    )


def _end_with_launcher() -> None:
    """Has the kernel end this process when torchrun is killed: nobody would end a rank that waits for another."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Orders:
    """The group that orders go through, apart from the work itself."""

    group: dist.ProcessGroup | None = None


class _OrderedReduceScatter:
    """Adds up the ranks' gradients along the tree, leaving out those that had no batch."""

    def __init__(self) -> None:
        self.present = 1

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        output_tensor.copy_(tree_sum(received.view(group.size(), -1)[: self.present]))


_ORDERED = _OrderedReduceScatter()
