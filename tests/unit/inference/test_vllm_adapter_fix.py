"""Test the products of adapters on CPU: each row with the weights of its own slot, none for the slot -1."""

import pytest

torch = pytest.importorskip("torch")

from stepstream.services.inference.vllm_adapter_fix import (  # noqa: E402
    bgmv_expand,
    bgmv_expand_slice,
    bgmv_shrink,
)

ROWS, IN, OUT, SLOTS = 6, 5, 4, 3


@pytest.mark.parametrize("slots", [[1] * ROWS, [-1] * ROWS, [0, 2, -1, 2, 0, 1], []])
@pytest.mark.parametrize("stacked", [True, False])
def test_each_row_is_multiplied_by_the_weights_of_its_slot(slots: list[int], stacked: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, IN, generator=draw)
    weights = torch.randn(SLOTS, OUT, IN, generator=draw)
    given = weights[:, None] if stacked else weights
    index = torch.tensor(slots, dtype=torch.long)
    products = torch.zeros(ROWS, OUT)
    for row, slot in enumerate(slots):
        if slot >= 0:
            products[row] = weights[slot] @ inputs[row]
    rows = len(slots)

    shrunk = torch.full((ROWS, OUT), 7.0)
    bgmv_shrink(inputs[:rows], given, shrunk, index, 2.0)
    torch.testing.assert_close(shrunk[:rows], 2 * products[:rows])
    assert (shrunk[rows:] == 7).all()

    added = torch.ones(ROWS, OUT)
    bgmv_expand(inputs[:rows], given, added, index)
    torch.testing.assert_close(added, 1 + products)

    sliced = torch.ones(ROWS, OUT + 3)
    bgmv_expand_slice(inputs[:rows], given, sliced, index, 2, OUT, True)
    torch.testing.assert_close(sliced[:, 2 : 2 + OUT], 1 + products)
    assert (sliced[:, :2] == 1).all()
    assert (sliced[:, 2 + OUT :] == 1).all()

    replaced = torch.ones(ROWS, OUT)
    bgmv_expand(inputs[:rows], given, replaced, index, add_inputs=False)
    torch.testing.assert_close(replaced[:rows], products[:rows])
