"""A sum whose last bits do not depend on who added which part.

Floating-point addition is not associative. Parts are therefore added as the leaves of one fixed binary tree, in which
a run of 2^k parts that begins at a multiple of 2^k is a subtree. Whoever holds such a run may add it up alone: one
process, or 2^k of them with a part each, come to the same bits.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


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
