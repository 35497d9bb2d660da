"""Check that packed, padded and single sequences give equal values and gradients, for every kind of model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from packed_models import PACKED, PADDED, WIDE, model_of, rows
from torch import Tensor

from stepstream.learner.data.kept_ids import KeptIds
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.model import attention
from stepstream.learner.model.forward import Packed, Padded, forward_pass_for
from stepstream.learner.model.pretrained import CannotTrain


def values(scores: Any, model: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, entropies, and the gradient of a sum of the former by all weights."""
    weights = torch.linspace(-1, 1, scores.logprobs.numel())
    (weights * scores.logprobs).sum().backward()
    gradient = torch.cat(
        [torch.zeros_like(w).flatten() if w.grad is None else w.grad.flatten() for w in model.parameters()]
    )
    model.zero_grad()
    return scores.logprobs.detach(), scores.entropy, gradient


def one_by_one(model: Any, chosen: Sequence[TokenSequence]) -> Any:
    from stepstream.learner.model.forward import Scores

    found = [model(torch.from_numpy(row.ids)[None], use_cache=False).logits[0].log_softmax(-1) for row in chosen]
    at = [each[row.trained - 1] for each, row in zip(found, chosen, strict=True)]
    at = [
        each if row.temperatures is None else each / torch.from_numpy(row.temperatures)[:, None]
        for each, row in zip(at, chosen, strict=True)
    ]
    at = [
        each.masked_fill(excluded(row, each), -torch.inf).log_softmax(-1) for each, row in zip(at, chosen, strict=True)
    ]
    logprobs = [
        each.gather(1, torch.from_numpy(r.ids[r.trained])[:, None])[:, 0] for each, r in zip(at, chosen, strict=True)
    ]
    return Scores(torch.cat(logprobs), torch.cat([torch.special.entr(each.exp()).sum(-1) for each in at]).detach())


def excluded(row: TokenSequence, logits: Tensor) -> Tensor:
    found = torch.zeros_like(logits, dtype=torch.bool)
    if row.kept is not None:
        for at, ids in enumerate(np.split(row.kept.ids, row.kept.counts.cumsum()[:-1])):
            found[at] = bool(ids.size)
            found[at, ids] = False
    return found


def assert_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", PACKED)
def test_packed_and_padded_equal_single_sequences(kind: str) -> None:
    model, chosen = model_of(kind, PACKED[kind]), rows()
    expected = values(one_by_one(model, chosen), model)
    assert_same(values(Padded()(model, chosen), model), expected)
    way = forward_pass_for(model)
    assert isinstance(way, Packed)
    assert_same(values(way(model, chosen), model), expected)
    apart = [way(model, [chosen[i] for i in batch]).logprobs for batch in way.batches(chosen, 60)]
    assert len(apart) > 1
    torch.testing.assert_close(torch.cat(apart).sum(), expected[0].sum())


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_packed_and_padded_score_at_each_token_s_temperature_among_its_ids(spread: bool, masked: bool) -> None:
    model, rng = model_of("qwen3", PACKED["qwen3"]), np.random.default_rng(1)
    model.get_output_embeddings().weight.data.mul_(20.0)
    chosen = []
    for number, row in enumerate(rows()):
        heat = rng.uniform(0.3, 1.5, row.trained.size) if spread else np.full(row.trained.size, 0.7)
        if masked and number != 1:
            sets = [
                np.union1d(rng.choice(model.config.vocab_size, 9), token) if rng.random() < 0.8 else np.empty(0)
                for token in row.ids[row.trained]
            ]
            row = replace(row, kept=KeptIds(np.array([len(s) for s in sets]), np.concatenate(sets).astype(np.int32)))
        chosen.append(row if spread and number == 2 else replace(row, temperatures=heat.astype(np.float32)))
    expected = values(one_by_one(model, chosen), model)
    for make in (lambda _: Padded(), forward_pass_for):
        forward_pass = make(model)
        for found, wanted in zip(values(forward_pass(model, chosen), model), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", PADDED)
def test_models_with_another_attention_are_padded(kind: str) -> None:
    model, chosen = model_of(kind, PADDED[kind]), rows()
    expected = values(one_by_one(model, chosen), model)
    way = forward_pass_for(model)
    assert isinstance(way, Padded)
    assert_same(values(way(model, chosen), model), expected)


def test_flash_runs_give_the_same_attention() -> None:
    """Return the GPU kernel's input: queries by run, with all keys that they attend to, the last ones their own."""
    from stepstream.learner.model.packing import pack

    packed = pack(rows())
    paths = attention.FlashRuns.of(packed, torch.device("cpu"))
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 4, packed.ids.size, 8) for _ in range(3))
    expected, _ = attention.tree_attention(query, key, value, torch.from_numpy(packed.runs), None)
    assert paths.keys is not None
    ends, key_ends = paths.ends.tolist(), paths.key_ends.tolist()
    for run in range(len(packed.runs)):
        own, keys = slice(ends[run], ends[run + 1]), paths.keys[key_ends[run] : key_ends[run + 1]]
        mask = torch.ones(own.stop - own.start, keys.numel()).tril(keys.numel() - (own.stop - own.start)).bool()
        found = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, own], key[:, :, keys], value[:, :, keys], attn_mask=mask
        )
        torch.testing.assert_close(found, expected[:, :, own])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: run on a machine with CUDA")
def test_packed_equals_padded_on_a_gpu() -> None:
    model, chosen = model_of("llama", WIDE | {"hidden_size": 128}).cuda(), rows()
    with torch.autocast("cuda", torch.bfloat16):
        expected = Padded()(model, chosen).logprobs
        way = forward_pass_for(model)
        assert isinstance(way, Packed)
        torch.testing.assert_close(way(model, chosen).logprobs, expected, atol=0.1, rtol=0.05)


def test_bfloat16_differs_by_its_precision_only() -> None:
    model, chosen = model_of("qwen3", PACKED["qwen3"]), rows()
    way = forward_pass_for(model)
    exact = values(way(model, chosen), model)
    with torch.autocast("cpu", torch.bfloat16):
        lower = way(model, chosen)
    assert lower.logprobs.dtype == torch.float32
    found = values(lower, model)
    assert 1e-5 < (found[0] - exact[0]).abs().max() < 0.05
    assert torch.nn.functional.cosine_similarity(found[2], exact[2], dim=0) > 0.999


def test_an_output_layer_that_is_not_plain_is_rejected() -> None:
    model = model_of("llama", WIDE)
    model.set_output_embeddings(torch.nn.Sequential(torch.nn.Linear(32, 61)))
    with pytest.raises(CannotTrain, match="output layer"):
        forward_pass_for(model)
