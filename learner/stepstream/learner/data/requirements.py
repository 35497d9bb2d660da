"""What each objective asks of a trajectory before it may be trained on: one table, which everybody else reads.

Split, consent, quarantine and quality are not in it: they hold for every objective.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stepstream.config import LearnerSettings


@dataclass(frozen=True, slots=True)
class Requirements:
    """What one objective needs of what it learns from."""

    sampled: bool
    """Token ids and behaviour log-probabilities of the model itself (fidelity `token`): its weights are ratios to
    the policy that sampled. Else text will do, whoever wrote it, and is tokenised as the model itself would say it."""
    fresh: bool
    """Sampled in this lineage, at most `learner.staleness_bound` versions ago."""
    whole_groups: bool
    """Every attempt of a group: what it compares with is their mean. Else a group that waited in vain is trained on as
    far as it came."""
    compares: bool
    """A better and a worse answer: attempts of one group, or a demonstration and the response in its place."""
    reference: bool
    """The root of the lineage, to stay near to."""
    demonstrations: Literal["unused", "imitated", "preferred"]
    """What a demonstration is: nothing, an answer in place of the step's own, or the better one of a pair with it."""


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
"""By `learner.objective`. What a policy gradient compares is its advantage rule's to say (`Rule.nothing_to_learn`)."""

STRICTEST = REQUIREMENTS["policy_gradient"]


def requirements_of(config: LearnerSettings) -> Requirements:
    """What the learner's objective needs."""
    return REQUIREMENTS[config.objective]
