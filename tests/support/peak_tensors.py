"""Measure the most bytes of tensors that a computation holds at once."""

import weakref
from collections.abc import Iterable

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stepstream.learner.model.distributed import local_shard


class PeakTensors(TorchDispatchMode):
    """Follows the storages of all results; storages that existed before count if they are given to `hold`."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: weakref.WeakValueDictionary[int, UntypedStorage] = weakref.WeakValueDictionary()
        self.peak = 0
        """Most bytes held at once."""

    @property
    def held(self) -> int:
        """Bytes held now; a storage may have been resized."""
        return sum(storage.nbytes() for storage in self._storages.values())

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of tensors, as long as they live."""
        for tensor in tensors:
            if not tensor.is_meta:
                storage = local_shard(tensor).untyped_storage()
                self._storages[storage._cdata] = storage
        self.peak = max(self.peak, self.held)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        self.hold(leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor))
        return found
