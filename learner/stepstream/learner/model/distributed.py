"""Train one model in several processes (ranks): deal out batches, shard weights and sum gradients.

Weights, gradients and optimizer state are sharded (FSDP2). On CPU a power of two of ranks gives the same bits as one
process: one rank computes each whole forward pass, in a split that does not depend on the number of ranks, and
gradients are summed along one fixed tree (`TreeSum`).
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
    """A running sum of lists of tensors whose bits do not depend on which process added which part.

    Floating-point addition is not associative. So parts are the leaves of one fixed binary tree, in which a run of 2^k
    parts that begins at a multiple of 2^k is a subtree. Any process may sum such a run: one process, or 2^k of them
    with a part each, get the same bits. Holds at most log2(parts) + 1 partial sums.
    """

    def __init__(self) -> None:
        self._partial: list[tuple[int, list[Tensor]]] = []

    def add(self, tensors: list[Tensor], parts: int = 1) -> None:
        """Add the sum of the next `parts` parts: a power of two, except for the last ones.

        The tensors then belong to the sum and are overwritten.
        """
        while self._partial and self._partial[-1][0] == parts:
            tensors = _added(self._partial.pop()[1], tensors)
            parts *= 2
        self._partial.append((parts, tensors))

    def total(self) -> list[Tensor]:
        """Return the sum of all parts and start a new one; empty if there were none."""
        total: list[Tensor] = []
        while self._partial:
            _, earlier = self._partial.pop()
            total = _added(earlier, total) if total else earlier
        return total


def tree_sum(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape; overwrites them."""
    running = TreeSum()
    for part in parts:
        running.add([part])
    return running.total()[0]


def _added(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    torch._foreach_add_(left, right)
    return left


T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_UPDATE_TIMEOUT = timedelta(minutes=30)
"""Time after which a rank that does not answer during an update ends the others."""
_IDLE_TIMEOUT = timedelta(days=3650)
"""How long the other ranks wait for the next command of rank 0, which waits for data to train on."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The number of processes that train together, and this process's rank."""

    rank: int = 0
    size: int = 1

    def rounds(self, batches: int) -> Iterator[tuple[int, int]]:
        """Deal batches out in order, one per rank and round.

        Yields:
            Index of this rank's batch, and the number of ranks that have one in this round. A rank at or beyond that
            number gets the round's first batch: it must compute too, since all ranks gather the weights together, but
            its result is not used.
        """
        for first in range(0, batches, self.size):
            present = min(self.size, batches - first)
            yield first + (self.rank if self.rank < present else 0), present

    def gather(self, of_rounds: Sequence[T], batches: int) -> list[T]:
        """Collect the results of all ranks, one for each batch, in the order of the batches."""
        if self.size == 1:
            return list(of_rounds)
        all_of: list[list[T]] = [[] for _ in range(self.size)]
        dist.all_gather_object(all_of, list(of_rounds))
        return [all_of[batch % self.size][batch // self.size] for batch in range(batches)]


def current_ranks() -> Ranks:
    """Return the ranks that this process has joined; a single rank if it has joined none."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the ranks that torchrun's environment names; without that, this process trains alone.

    Raises:
        Fatal: their number is not a power of two.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    if size & (size - 1):
        raise Fatal(f"{size} ranks: start a power of two, such as 2, 4 or 8; only these give the same bits as one")
    _die_with_launcher()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=_UPDATE_TIMEOUT)
    _ControlGroup.group = dist.new_group(timeout=_IDLE_TIMEOUT, backend="gloo")
    yield current_ranks()
    dist.destroy_process_group()  # not after a fault: the ranks would wait for each other


def broadcast(command: Any) -> None:
    """Send a picklable object to the other ranks; for rank 0."""
    dist.broadcast_object_list([command], 0, _ControlGroup.group)


def receive() -> Any:
    """Wait for the next object from rank 0 and return it; for the other ranks.

    Raises:
        Fatal: rank 0 is gone.
    """
    received = [None]
    try:
        dist.broadcast_object_list(received, 0, _ControlGroup.group)
    except RuntimeError as error:
        raise Fatal(f"rank 0 is gone ({str(error).splitlines()[0]})") from None
    return received[0]


def shard(module: nn.Module, blocks: Sequence[nn.Module], device: str) -> None:
    """Shard a module's weights over all ranks, block by block; gradients are then sums over the ranks.

    Args:
        module: module whose forward pass uses the weights.
        blocks: parts of it whose weights are gathered and freed together, in the order of use.
        device: type of the weights' device, `cpu` or `cuda`.
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


def set_present_ranks(count: int) -> None:
    """Set the number of ranks that have a batch in the round whose gradients come next."""
    _ORDERED.present = count


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor if it is not sharded."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_full(tensor: Tensor) -> Tensor:
    """Return the whole tensor. Every rank must call this."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_like(value: Tensor, pattern: Tensor) -> Tensor:
    """Shard a tensor, which every rank has whole, like `pattern`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(pattern, DTensor):
        return value
    return distribute_tensor(value, pattern.device_mesh, pattern.placements, src_data_rank=None)


def from_shard(value: Tensor, pattern: Tensor) -> Tensor:
    """Return a tensor sharded like `pattern` from this rank's shard."""
    from torch.distributed.tensor import DTensor

    if not isinstance(pattern, DTensor):
        return value
    return DTensor.from_local(
        value, pattern.device_mesh, pattern.placements, run_check=False, shape=pattern.shape, stride=pattern.stride()
    )


def _die_with_launcher() -> None:
    """Let the kernel end this process when torchrun is killed: nothing else would end a waiting rank."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _ControlGroup:
    """The process group of rank 0's commands, separate from that of the training."""

    group: dist.ProcessGroup | None = None


class _OrderedReduceScatter:
    """Sums the ranks' gradients along the tree, without ranks that had no batch."""

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
