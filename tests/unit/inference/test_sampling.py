"""Test sampling: independent rows, logprobs of the sampled distribution, exact inversion."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.inference.engine import SamplingParams
from stepstream.services.inference.sampling import sample

# From grids, so that no draw depends on the last bit of a sum.
LOGITS = st.lists(
    st.lists(st.integers(-80, 80).map(lambda tenths: tenths / 10), min_size=5, max_size=5), min_size=1, max_size=4
)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([0.1, 0.7, 1.0]),
)
UNIFORM = st.integers(0, 996).map(lambda cell: (cell + 0.5) / 997)


@given(
    logits=LOGITS, params=st.lists(PARAMS, min_size=4, max_size=4), uniforms=st.lists(UNIFORM, min_size=4, max_size=4)
)
def test_a_row_does_not_depend_on_the_others(
    logits: list[list[float]], params: list[SamplingParams], uniforms: list[float]
) -> None:
    rows = len(logits)
    tokens, logprobs = sample(torch.tensor(logits), params[:rows], uniforms[:rows])
    for row in range(rows):
        [token], [logprob] = sample(torch.tensor([logits[row]]), [params[row]], [uniforms[row]])
        assert token == tokens[row]
        assert logprob == pytest.approx(logprobs[row], abs=1e-6)


@given(logits=LOGITS, params=PARAMS, uniform=UNIFORM)
def test_the_logprob_is_under_the_sampled_distribution(
    logits: list[list[float]], params: SamplingParams, uniform: float
) -> None:
    [token], [logprob] = sample(torch.tensor(logits[:1]), [params], [uniform])
    exact = [value / (params.temperature or 1.0) for value in logits[0]]
    if params.temperature and params.top_p < 1:
        shares = torch.tensor(exact).softmax(-1).tolist()
        order = sorted(range(5), key=lambda index: -shares[index])
        nucleus = [index for place, index in enumerate(order) if sum(shares[i] for i in order[:place]) < params.top_p]
        likeliest = max(shares[index] for index in nucleus)
        assert shares[token] <= likeliest
        assert math.exp(logprob) >= shares[token] - 1e-6
    else:
        expected = torch.tensor(exact).log_softmax(-1)[token].item()
        assert logprob == pytest.approx(expected, abs=1e-5)
    if not params.temperature:
        assert logits[0][token] == max(logits[0])


def test_inversion_gives_each_token_its_share() -> None:
    shares = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    draws = [sample(shares.log(), [SamplingParams(1)], [step / 1000])[0][0] for step in range(1000)]
    assert [draws.count(token) for token in range(4)] == pytest.approx([100, 200, 300, 400], abs=1)


def test_a_token_outside_the_nucleus_is_never_drawn() -> None:
    shares = torch.tensor([[0.05, 0.6, 0.35]])
    assert {sample(shares.log(), [SamplingParams(1, top_p=0.9)], [u])[0][0] for u in (0.0, 0.5, 0.9999999)} == {1, 2}
