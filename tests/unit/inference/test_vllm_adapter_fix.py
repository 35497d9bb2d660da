"""Test the products of adapters on CPU: each row with the weights of its own slot, none for the slot -1."""

import pytest

torch = pytest.importorskip("torch")

from stepstream.services.inference.vllm_adapter_fix import (  # noqa: E402
    add_products,
    bgmv_expand,
    bgmv_expand_slice,
    bgmv_shrink,
    common_slot,
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


@pytest.mark.parametrize(
    ("slots", "expected"), [([], -1), ([-1, -1], -1), ([2, 2], 2), ([0, 1], None), ([1, -1], None)]
)
def test_a_batch_has_a_common_slot_if_all_tokens_have_it(slots: list[int], expected: int | None) -> None:
    assert common_slot(torch.tensor(slots, dtype=torch.long)) == expected


def test_products_of_a_common_slot_equal_those_row_by_row() -> None:
    draw = torch.Generator().manual_seed(0)
    sizes, rank = (4, 3), 2
    inputs = torch.randn(ROWS, IN, generator=draw)
    first = tuple(torch.randn(SLOTS, 1, rank, IN, generator=draw) for _ in sizes)
    second = tuple(torch.randn(SLOTS, 1, size, rank, generator=draw) for size in sizes)

    added = torch.ones(ROWS, sum(sizes))
    add_products(added, inputs, first, second, 1, 0.5, sizes)

    rows = [torch.cat([0.5 * (b[1, 0] @ (a[1, 0] @ x)) for a, b in zip(first, second, strict=True)]) for x in inputs]
    torch.testing.assert_close(added, 1 + torch.stack(rows))
