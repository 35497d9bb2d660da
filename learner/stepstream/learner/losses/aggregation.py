"""How a minibatch's tokens are summed to its loss."""

from collections.abc import Sequence
from typing import Literal, assert_never

from stepstream.learner.advantages import Aggregation


def token_scales(lengths: Sequence[int], rule: Aggregation | Literal["sum"], constant: int) -> list[float]:
    """What each token of a sequence counts in the loss, by sequence: the loss is -Σ scale · J over its tokens.

    Rejected tokens stay in the denominators, or rejecting some would raise the others; sequences without trained
    tokens are left out.

    Args:
        lengths: trained tokens of each sequence of the minibatch.
        rule: `grpo`: mean over sequences of token means; `rloo`: mean over tokens; `dr_grpo`: sum over tokens
            divided by sequences times `constant`, so that a long answer is not favoured; `sum`: sum over tokens, where
            their weights are normalised already.
        constant: trained tokens that a sequence may have (L_max).
    """
    sequences = max(1, sum(1 for length in lengths if length))
    if rule == "grpo":
        return [1.0 / (sequences * max(1, length)) for length in lengths]
    if rule == "rloo":
        return [1.0 / max(1, sum(lengths))] * len(lengths)
    if rule == "dr_grpo":
        return [1.0 / (sequences * constant)] * len(lengths)
    if rule == "sum":
        return [1.0] * len(lengths)
    assert_never(rule)
