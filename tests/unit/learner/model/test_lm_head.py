"""Check that the fused output layer equals the plain one and never holds all logits."""

import pytest
import torch
from largest_tensor import LargestTensor
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stepstream.learner.model import lm_head


def sample(tokens: int, vocabulary: int, bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(tokens, 16, requires_grad=True),
        torch.randn(vocabulary, 16, requires_grad=True),
        torch.randn(vocabulary, requires_grad=True) if bias else None,
        torch.randint(vocabulary, (tokens,)),
    )


def masks(targets: Tensor, vocabulary: int) -> tuple[lm_head.Mask, Tensor]:
    """Return a mask with ids for six tokens of seven, and it as a [tokens, vocabulary] tensor."""
    allowed = torch.rand(targets.numel(), vocabulary) < torch.rand(targets.numel(), 1)
    allowed[torch.arange(targets.numel()), targets] = True
    allowed[::7] = True
    counts = torch.where(allowed.all(1), 0, allowed.sum(1))
    return lm_head.Mask(counts, (allowed & (counts > 0)[:, None]).nonzero()[:, 1].int()), allowed


@pytest.mark.parametrize(
    "transform",
    [lm_head.PLAIN, lm_head.LogitTransform(0.25), lm_head.LogitTransform(1.0, 3.0), lm_head.LogitTransform(2.0, 5.0)],
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("heat", [None, 0.7, "mixed"])
@pytest.mark.parametrize("most_logits", [1, 2**20])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_logprobs_equal_log_softmax_with_its_gradient(
    monkeypatch: pytest.MonkeyPatch,
    bias: bool,
    most_logits: int,
    heat: float | str | None,
    transform: lm_head.LogitTransform,
    masked: bool,
    frozen: bool,
) -> None:
    monkeypatch.setitem(lm_head._MAX_LOGITS, "cpu", most_logits)
    hidden, weight, offset, targets = sample(200, 50, bias)
    leaves = [hidden, weight] if offset is None else [hidden, weight, offset]
    if frozen:
        for leaf in leaves[1:]:
            leaf.requires_grad_(False)
        leaves = leaves[:1]
    temperatures = None
    if heat is not None:
        temperatures = 0.5 + 1.5 * torch.rand(200) if heat == "mixed" else torch.full((200,), heat)  # type: ignore[arg-type]
    mask, allowed = masks(targets, 50) if masked else (None, torch.ones(200, 50).bool())
    logprobs, entropy = lm_head.chosen_logprobs(hidden, weight, offset, targets, transform, temperatures, mask)
    logits = torch.nn.functional.linear(hidden, weight, offset) * transform.scale
    logits = logits if transform.cap is None else transform.cap * (logits / transform.cap).tanh()
    logits = logits if temperatures is None else logits / temperatures[:, None]
    rows = logits.masked_fill(~allowed, -torch.inf).log_softmax(-1)
    expected = rows.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, torch.special.entr(rows.exp()).sum(-1), atol=5e-5, rtol=1e-5)
    assert not entropy.requires_grad
    upstream = torch.randn(200)
    for found, wanted in zip(
        torch.autograd.grad(logprobs, leaves, upstream), torch.autograd.grad(expected, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


def test_temperature_1_changes_no_bit() -> None:
    for transform in (lm_head.PLAIN, lm_head.LogitTransform(0.5, 3.0)):
        results = []
        for temperatures in (None, torch.ones(200)):
            hidden, weight, offset, targets = sample(200, 50, True)
            found = lm_head.chosen_logprobs(hidden, weight, offset, targets, transform, temperatures)
            results.append((*found, *torch.autograd.grad(found[0].sum(), [hidden, weight])))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_frozen_weights_cost_two_products() -> None:
    """The output layer below adapters: one product for the logits, one for the gradient, none in the backward pass."""
    hidden, weight, _, targets = sample(100, 50, bias=False)
    weight.requires_grad_(False)
    with FlopCounterMode(display=False) as flops:
        logprobs = lm_head.chosen_logprobs(hidden, weight, None, targets)[0]
        logprobs.sum().backward()
    assert flops.get_total_flops() == 2 * (2 * hidden.numel() * 50)


def test_no_tensor_is_larger_than_a_few_tokens_logits() -> None:
    hidden, weight, _, targets = sample(2_000, 50_000, bias=False)
    with LargestTensor() as plain:
        torch.nn.functional.linear(hidden[:400], weight)
    assert plain.elements == 400 * 50_000
    mask = lm_head.Mask(torch.full((2_000,), 64), torch.stack([targets] * 64, 1).flatten())
    for each in (None, mask):
        with LargestTensor() as fused:
            lm_head.chosen_logprobs(hidden, weight, None, targets, mask=each)[0].sum().backward()
        assert fused.elements <= lm_head._MAX_LOGITS["cpu"] < 2_000 * 50_000 / 10
