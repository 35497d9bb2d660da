"""List the requirements of each objective on the trajectories that it trains on.

Admission, replay buffer and figures read this table. Split, consent, quarantine and quality hold for every objective
and are not in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stepstream.config import LearnerSettings


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements of one objective."""

    sampled: bool
    """True if it needs token ids and behaviour log-probabilities of the model itself (fidelity `token`), for ratios to
    the policy that sampled. False: text by any author is enough, tokenised with the model's own chat template."""
    fresh: bool
    """True if tokens must be sampled in this lineage, at most `learner.staleness_bound` versions ago."""
    whole_groups: bool
    """True if it compares with the mean of the group, so every attempt must have come. False: a group that has waited
    `learner.group_wait_s` is trained on without the missing attempts."""
    compares: bool
    """True if it needs a better and a worse answer: attempts of one group, or a demonstration and its response."""
    reference: bool
    """True if it needs the lineage's root as reference policy."""
    demonstrations: Literal["unused", "imitated", "preferred"]
    """Role of a demonstration: none, replacement of the step's own response, or the better one of a pair with it."""


REQUIREMENTS: Mapping[str, Requirements] = {
    "policy_gradient": Requirements(
        sampled=True, fresh=True, whole_groups=True, compares=False, reference=False, demonstrations="unused"
    ),
    "dpo": Requirements(
        sampled=False, fresh=False, whole_groups=False, compares=True, reference=True, demonstrations="preferred"
    ),
    "kto": Requirements(
        sampled=False, fresh=False, whole_groups=False, compares=False, reference=True, demonstrations="unused"
    ),
    "sft": Requirements(
        sampled=False, fresh=False, whole_groups=False, compares=False, reference=False, demonstrations="imitated"
    ),
}
"""By `learner.objective`. For a policy gradient the advantage rule decides on comparisons (`Rule.nothing_to_learn`)."""

STRICTEST = REQUIREMENTS["policy_gradient"]


def requirements_of(config: LearnerSettings) -> Requirements:
    """Return the requirements of the configured objective."""
    return REQUIREMENTS[config.objective]
