"""Train one model in several processes (ranks): deal out batches, shard weights and sum gradients.

Weights, gradients and optimizer state are sharded (FSDP2). Where bits are promised (`is_exact`) a power of two of ranks
gives the same bits as one process: one rank computes each whole forward pass, in a split that does not depend on the
number of ranks, and gradients are summed along one fixed tree (`TreeSum`). Elsewhere any number of ranks trains.
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

from stepstream.config import LearnerSettings
from stepstream.core.process import Fatal
from stepstream.learner.model.rank_groups import open_groups


def is_exact(config: LearnerSettings) -> bool:
    """Return True if the same log gives the same bits on any number of ranks."""
    return config.reproducible and config.device == "cpu"


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


@dataclass(frozen=True, slots=True)
class Ranks:
    """The number of processes that train together, and this process's rank."""

    rank: int = 0
    size: int = 1
    sequence: int = 1
    """Number of consecutive ranks that compute each batch together (`learner.sequence_parallel`): a batch group."""

    @property
    def group(self) -> int:
        """This rank's batch group."""
        return self.rank // self.sequence

    def rounds(self, batches: int) -> Iterator[tuple[int, int]]:
        """Deal batches out in order, one per batch group and round.

        Yields:
            Index of this group's batch, and the number of groups that have one in this round. A group at or beyond that
            number gets the round's first batch: it must compute too, since all ranks gather the weights together, but
            its result is not used.
        """
        groups = self.size // self.sequence
        for first in range(0, batches, groups):
            present = min(groups, batches - first)
            yield first + (self.group if self.group < present else 0), present

    def gather(self, of_rounds: Sequence[T], batches: int) -> list[T]:
        """Collect the results of all groups, one for each batch, in the order of the batches.

        The ranks of a group have equal results.
        """
        if self.size == 1:
            return list(of_rounds)
        all_of: list[list[T]] = [[] for _ in range(self.size)]
        dist.all_gather_object(all_of, list(of_rounds))
        of_groups = all_of[:: self.sequence]
        return [of_groups[batch % len(of_groups)][batch // len(of_groups)] for batch in range(batches)]


def current_ranks(sequence: int = 1) -> Ranks:
    """Return the ranks that this process has joined; a single rank if it has joined none."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size(), sequence)
    return Ranks()


@contextmanager
def join_ranks(exact: bool = True) -> Iterator[Ranks]:
    """Join the ranks that torchrun's environment names; without that, this process trains alone.

    Args:
        exact: True if the number of ranks must not change the bits.

    Raises:
        Fatal: their number is not a power of two, and `exact` is True.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    if exact and size & (size - 1):
        raise Fatal(
            f"{size} ranks: start a power of two, such as 2, 4 or 8; only these give the same bits as one; or set "
            "learner.reproducible=false"
        )
    _die_with_launcher()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=_UPDATE_TIMEOUT)
    open_groups()
    yield current_ranks()
    dist.destroy_process_group()  # not after a fault: the ranks would wait for each other


def ensure_group(device: str) -> None:
    """Let a process that has joined no ranks be a single rank: sharded modules need a group."""
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)


def shard(module: nn.Module, blocks: Sequence[nn.Module], config: LearnerSettings) -> None:
    """Shard a module's weights over the ranks, block by block; gradients are then sums over the ranks.

    Where bits are not promised and `learner.precision` is bfloat16, the gathered weights are bfloat16 and gradients are
    summed in float32; the shards stay in float32.

    Args:
        module: module whose forward pass uses the weights, possibly on the meta device.
        blocks: parts of it whose weights are gathered and freed together, in the order of use.
        config: settings: device, precision, number of ranks that share one copy of the weights.

    Raises:
        Fatal: the number of ranks is no multiple of `learner.shard_ranks`.
    """
    from torch.distributed.fsdp import (  # these take seconds to import
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    exact = is_exact(config)
    lowered = None if exact or config.precision == "float32" else torch.bfloat16
    precision = MixedPrecisionPolicy(param_dtype=lowered, reduce_dtype=torch.float32 if lowered else None)
    frozen = not any(weight.requires_grad for weight in module.parameters())
    # Only a frozen copy may stay in host memory: trained weights are stepped on their device.
    offload = (
        CPUOffloadPolicy(pin_memory=config.device == "cuda") if frozen and config.reference_offload else OffloadPolicy()
    )
    mesh = _mesh(config)
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh, reshard_after_forward=frozen or None, mp_policy=precision, offload_policy=offload)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        part.set_reduce_scatter_unused_params(True)
        if exact:
            part.set_custom_reduce_scatter(cast(Any, _ORDERED))


def _mesh(config: LearnerSettings) -> Any:
    """Return the mesh of the ranks: one dimension, or copies by shards (hybrid sharding)."""
    from torch.distributed.device_mesh import init_device_mesh

    size, shards = dist.get_world_size(), config.shard_ranks
    if not shards or shards == size:
        return init_device_mesh(config.device, (size,))
    if size % shards:
        raise Fatal(f"{size} ranks: start a multiple of learner.shard_ranks={shards}, or set it to 0")
    return init_device_mesh(config.device, (size // shards, shards), mesh_dim_names=("copies", "shards"))


def materialize(module: nn.Module, device: torch.device) -> None:
    """Give a module's weights on the meta device undefined values in this rank's memory; buffers keep their values."""
    buffers = {name: value for name, value in module.named_buffers() if not value.is_meta}
    module.to_empty(device=device)
    with torch.no_grad():
        for name, value in module.named_buffers():
            if name in buffers:
                value.copy_(buffers[name])


def free_gathered(module: nn.Module) -> None:
    """Free the gathered weights of a sharded module that its last forward pass kept for a backward pass."""
    from torch.distributed.fsdp import FSDPModule

    assert isinstance(module, FSDPModule)
    module.reshard()


def set_gradient_sync(module: nn.Module, is_last: bool, in_each_pass: bool) -> None:
    """Choose whether the next backward pass sums the gradients over the ranks that share a copy, and over all copies.

    Args:
        module: sharded module.
        is_last: True for the last pass of an optimizer step: gradients are summed over all ranks.
        in_each_pass: True to sum over the ranks that share a copy in each pass.
    """
    from torch.distributed.fsdp import FSDPModule

    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(is_last or in_each_pass)
    module.set_requires_all_reduce(is_last)


def local_rows(tensor: Tensor) -> tuple[int, int] | None:
    """Return the first row of a sharded tensor that this rank holds, and the row after its last; None: not sharded."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return None
    first, rows = 0, tensor.shape[0]
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_shard(0):
            shards = tensor.device_mesh.size(dimension)
            first = min(rows, -(-rows // shards) * tensor.device_mesh.get_local_rank(dimension))
        elif not placement.is_replicate():
            raise ValueError(f"a tensor is placed as {placement}: only shards of rows are supported")
    return first, first + tensor.to_local().shape[0]


def is_first_copy(tensor: Tensor) -> bool:
    """Return True if this rank is the first of those that hold the same rows of a tensor."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return current_ranks().rank == 0
    mesh = tensor.device_mesh
    return all(p.is_shard() or mesh.get_local_rank(dimension) == 0 for dimension, p in enumerate(tensor.placements))


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
