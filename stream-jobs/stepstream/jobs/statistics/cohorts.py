"""Statistics of trajectories and cohorts, as sums that a newer revision can be taken back out of. Pure.

Sums of rewards and times are kept as integers (billionths, microseconds): unlike floating-point sums they do not
depend on the order of additions, so that a rebuild gives the same figures to the last bit.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Self

from stepstream.topics.events import LabeledTrajectory

REWARD_UNIT = 1_000_000_000
TIME_UNIT = 1_000


@dataclass(frozen=True, slots=True)
class Cohort:
    """What trajectories are compared by; `tool` empty: all of the trajectory."""

    agent: str
    model: str
    policy_version: int | None
    harness_version: str
    split: str
    tool: str


@dataclass(frozen=True, slots=True)
class Sums:
    """What is added up."""

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

    def __add__(self, other: Self) -> "Sums":
        return Sums(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __neg__(self) -> "Sums":
        return Sums(*(-mine for mine in astuple(self)))


def contributions(labelled: LabeledTrajectory) -> Iterator[tuple[Cohort, Sums]]:
    """What one labelled trajectory adds to each of its cohorts: the whole of it, then each of its tools.

    The duration of the whole is the time of its model calls, that of a tool the time of its calls.
    """
    names = (
        labelled["agent"],
        labelled["model"],
        labelled["version_max"],
        labelled["harness_version"],
        labelled["split"],
    )
    success = labelled["success"]
    counted = {
        "trajectories": 1,
        "successes": int(success is True),
        "failures": int(success is False),
        "truncated": int(labelled["end"] != "terminated"),
    }
    steps = labelled["steps"]
    reward = round(labelled["reward"] * REWARD_UNIT)
    yield (
        Cohort(*names, tool=""),
        Sums(
            **counted,
            steps=len(steps),
            errors=sum(step["error"] is not None for step in steps),
            tool_calls=sum(use["calls"] for use in labelled["tools"]),
            prompt_tokens=labelled["prompt_tokens"],
            response_tokens=labelled["response_tokens"],
            reward=reward,
            duration=sum(round((step["duration_ms"] or 0.0) * TIME_UNIT) for step in steps),
        ),
    )
    for use in labelled["tools"]:
        if use["name"]:
            yield (
                Cohort(*names, tool=use["name"]),
                Sums(
                    **counted,
                    steps=len(steps),
                    errors=use["errors"],
                    tool_calls=use["calls"],
                    reward=reward,
                    duration=round(use["duration_ms"] * TIME_UNIT),
                ),
            )
