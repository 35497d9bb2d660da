"""Group-relative advantages: how much better an attempt was than its group, from the rewards alone.

Formulas: REINFORCE leave-one-out (RLOO, arXiv 2402.14740), GRPO (2402.03300) and Dr. GRPO (2503.20783).
"""

import math
from collections.abc import Sequence
from typing import Literal, assert_never

Rule = Literal["grpo", "dr_grpo", "rloo"]

_EPSILON = 1e-6


def advantages(rewards: Sequence[float], rule: Rule) -> list[float]:
    """One advantage for each attempt of a group, in the order of `rewards`.

    A group of one and a group whose rewards are all equal teach nothing: all zeros.
    """
    n = len(rewards)
    if not has_variance(rewards):
        return [0.0] * n
    mean = math.fsum(rewards) / n
    centred = [reward - mean for reward in rewards]
    if rule == "dr_grpo":
        return centred
    if rule == "rloo":
        return [difference * n / (n - 1) for difference in centred]
    if rule == "grpo":
        deviation = math.sqrt(math.fsum(difference**2 for difference in centred) / (n - 1))
        return [difference / (deviation + _EPSILON) for difference in centred]
    assert_never(rule)


def has_variance(rewards: Sequence[float]) -> bool:
    """Whether a group can teach anything: at least two attempts that were not rewarded alike."""
    return any(reward != rewards[0] for reward in rewards[1:])
