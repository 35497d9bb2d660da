"""How a minibatch's tokens are summed to its loss."""

from collections.abc import Sequence
from typing import Literal, assert_never

from stepstream.learner.advantages import Aggregation


def token_scales(lengths: Sequence[int], rule: Aggregation | Literal["sum"], constant: int) -> list[float]:
    """What each token of a response counts in the loss, by response: the loss is -Σ scale · J over its tokens.

    Rejected tokens stay in the denominators, or rejecting some would raise the others; responses without trained
    tokens are left out. A response is what one attempt sampled, the o_i of GRPO's group (arXiv 2402.03300, eq. 3): an
    attempt whose context was edited lies in several training sequences, and counts once.

    Args:
        lengths: trained tokens of each response of the minibatch.
        rule: `grpo`: mean over responses of token means; `rloo`: mean over tokens; `dr_grpo`: sum over tokens
            divided by responses times `constant`, so that a long answer is not favoured; `sum`: sum over tokens, where
            their weights are normalised already.
        constant: trained tokens that a response may have (L_max).
    """
    responses = max(1, sum(1 for length in lengths if length))
    if rule == "grpo":
        return [1.0 / (responses * max(1, length)) for length in lengths]
    if rule == "rloo":
        return [1.0 / max(1, sum(lengths))] * len(lengths)
    if rule == "dr_grpo":
        return [1.0 / (responses * constant)] * len(lengths)
    if rule == "sum":
        return [1.0] * len(lengths)
    assert_never(rule)
