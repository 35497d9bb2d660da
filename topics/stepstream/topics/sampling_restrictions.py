"""Decide whether a response was sampled from the model's whole softmax, and name the restriction if not. Pure.

The learner's ratios divide probabilities under its own softmax by the recorded ones. Both are of the same distribution
if temperature alone changed the logits. If tokens were only excluded, both are if the learner excludes the same ones: a
step's `sampling_mask` names those that were left.
"""

from typing import Literal, get_args

from stepstream.topics.events import Sampling

Restriction = Literal["greedy", "penalised", "biased", "truncated", "grammar"]
RESTRICTIONS: tuple[Restriction, ...] = get_args(Restriction)
"""In order of precedence: a response with several restrictions is recorded with the first of them."""
MASKED: frozenset[str] = frozenset(("truncated", "grammar"))
"""Restrictions that only exclude tokens: with a sampling mask the learner scores the distribution that was sampled."""
LEAST_TEMPERATURE = 0.01
"""Below it sampling counts as greedy: vLLM raises such a temperature to this value, or takes the likeliest token."""


def restriction_of(sampling: Sampling) -> Restriction | Literal[""]:
    """Return the first of `RESTRICTIONS` that applies; empty: the tokens were sampled from the whole softmax."""
    if not sampling["temperature"] >= LEAST_TEMPERATURE:
        return "greedy"
    if sampling["presence_penalty"] or sampling["frequency_penalty"] or sampling["repetition_penalty"] != 1.0:
        return "penalised"
    if sampling["logit_bias"]:
        return "biased"
    if sampling["top_p"] < 1.0 or sampling["top_k"] > 0 or sampling["min_p"] > 0.0:
        return "truncated"
    return "grammar" if sampling["constraint"] else ""
