"""Test sampling: independent rows, logprobs of the sampled distribution, exact inversion."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference_sampling import reference_logprobs

from stepstream.services.inference.engine import SamplingParams
from stepstream.services.inference.sampling import Context, sample

# From grids, so that no draw depends on the last bit of a sum.
LOGITS = st.lists(
    st.lists(st.integers(-80, 80).map(lambda tenths: tenths / 10), min_size=5, max_size=5), min_size=1, max_size=4
)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
    top_p=st.sampled_from([0.1, 0.7, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 9]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    presence_penalty=st.sampled_from([0.0, 1.5, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([(), ((0, 2.0), (3, -100.0))]),
    mask_ids=st.sampled_from([0, 2, 5]),
)
CONTEXT = st.builds(
    Context, st.lists(st.integers(0, 4), max_size=4).map(tuple), st.lists(st.integers(0, 4), max_size=4).map(tuple)
)
UNIFORM = st.integers(0, 996).map(lambda cell: (cell + 0.5) / 997)


@given(
    logits=LOGITS,
    params=st.lists(PARAMS, min_size=4, max_size=4),
    uniforms=st.lists(UNIFORM, min_size=4, max_size=4),
    contexts=st.lists(CONTEXT, min_size=4, max_size=4),
)
def test_a_row_does_not_depend_on_the_others(
    logits: list[list[float]], params: list[SamplingParams], uniforms: list[float], contexts: list[Context]
) -> None:
    rows = len(logits)
    tokens, logprobs, _ = sample(torch.tensor(logits), params[:rows], uniforms[:rows], contexts[:rows])
    for row in range(rows):
        [token], [logprob], _ = sample(torch.tensor([logits[row]]), [params[row]], [uniforms[row]], [contexts[row]])
        assert token == tokens[row]
        assert logprob == pytest.approx(logprobs[row], abs=1e-6)


@given(logits=LOGITS, params=PARAMS, uniform=UNIFORM, context=CONTEXT)
def test_the_logprob_is_under_the_sampled_distribution(
    logits: list[list[float]], params: SamplingParams, uniform: float, context: Context
) -> None:
    [token], [logprob], [mask] = sample(torch.tensor(logits[:1]), [params], [uniform], [context])
    allowed = reference_logprobs(torch.tensor(logits[:1]), params, context)
    assert math.isfinite(logprob)
    if not params.temperature:
        assert allowed[token] == pytest.approx(max(allowed), abs=1e-6)
    has_no_ties = len(set(logits[0])) == len(logits[0]) and not params.changes_logits
    # Equal logits at the border of a set may be taken in either order; the shares are the same, but for top_k, where
    # the reference keeps all that equal the last one.
    if not params.top_k or has_no_ties:
        assert any(value == pytest.approx(logprob, abs=1e-5) for value in allowed if math.isfinite(value))
    if has_no_ties:
        assert allowed[token] == pytest.approx(logprob, abs=1e-5)
        left = [token for token, value in enumerate(allowed) if math.isfinite(value)]
        assert list(mask) == (left if params.truncates and len(left) <= params.mask_ids else [])
    assert not mask or token in mask


def test_inversion_gives_each_token_its_share() -> None:
    shares = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    draws = [sample(shares.log(), [SamplingParams(1)], [step / 1000])[0][0] for step in range(1000)]
    assert [draws.count(token) for token in range(4)] == pytest.approx([100, 200, 300, 400], abs=1)


def test_a_token_outside_the_nucleus_is_never_drawn() -> None:
    shares = torch.tensor([[0.05, 0.6, 0.35]])
    assert {sample(shares.log(), [SamplingParams(1, top_p=0.9)], [u])[0][0] for u in (0.0, 0.5, 0.9999999)} == {1, 2}
