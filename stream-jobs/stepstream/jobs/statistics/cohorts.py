"""Sum up trajectories by cohort. A newer revision replaces the contribution of the older one. Pure.

Rewards and times are integers (billionths, microseconds). Unlike floating-point sums, they do not depend on the order
of addition: a rebuild gives the same figures to the last bit.
"""

from collections.abc import Iterator
from operator import add, neg
from typing import NamedTuple

from stepstream.jobs.statistics.outcome import outcome_of
from stepstream.topics.events import LabeledTrajectory
from stepstream.topics.ids import DEFAULT_TENANT

REWARD_UNIT = 1_000_000_000
"""Units of `Sums.reward` in a reward of 1."""
TIME_UNIT = 1_000
"""Units of `Sums.duration` in a millisecond."""


class Cohort(NamedTuple):
    """Properties by which trajectories are compared; `tool` empty: whole trajectories."""

    agent: str
    model: str
    policy_version: int | None
    harness_version: str
    split: str
    tool: str
    tenant: str = DEFAULT_TENANT
    """Earlier releases saved none."""


class Sums(NamedTuple):
    """Totals of a cohort; `reward` in `REWARD_UNIT`, `duration` in `TIME_UNIT`."""

    trajectories: int = 0
    successes: int = 0
    failures: int = 0
    truncated: int = 0
    steps: int = 0
    errors: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    reward: int = 0
    duration: int = 0

    def plus(self, other: "Sums") -> "Sums":
        """Return the totals of both."""
        return Sums(*map(add, self, other))

    def negated(self) -> "Sums":
        """Return what removes these totals when added."""
        return Sums(*map(neg, self))


def contributions(label: LabeledTrajectory) -> Iterator[tuple[Cohort, Sums]]:
    """Yield the contribution of a trajectory to each of its cohorts: first the whole trajectory, then each of its
    tools.

    The duration of a trajectory is that of its model calls; the duration of a tool is that of its calls.
    """
    names = (
        label["agent"],
        label["model"],
        label["version_max"],
        label["harness_version"],
        label["split"],
    )
    outcome = outcome_of(label)
    counted = {
        "trajectories": 1,
        "successes": int(outcome is True),
        "failures": int(outcome is False),
        "truncated": int(label["end"] == "truncated"),
    }
    steps = label["steps"]
    reward = round(label["reward"] * REWARD_UNIT)
    yield (
        Cohort(*names, tool="", tenant=label["tenant"]),
        Sums(
            **counted,
            steps=len(steps),
            errors=sum(step["error"] is not None for step in steps),
            tool_calls=sum(use["calls"] for use in label["tools"]),
            prompt_tokens=label["prompt_tokens"],
            response_tokens=label["response_tokens"],
            reward=reward,
            duration=sum(round((step["duration_ms"] or 0.0) * TIME_UNIT) for step in steps),
        ),
    )
    for use in label["tools"]:
        if use["name"]:
            yield (
                Cohort(*names, tool=use["name"], tenant=label["tenant"]),
                Sums(
                    **counted,
                    steps=len(steps),
                    errors=use["errors"],
                    tool_calls=use["calls"],
                    reward=reward,
                    duration=round(use["duration_ms"] * TIME_UNIT),
                ),
            )
