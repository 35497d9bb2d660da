"""What a labelled trajectory adds to the statistics of reward components. Pure.

Values are kept as integers (millionths): their sums and squares do not depend on the order of additions, and a newer
revision can be taken back out of them without a trace.
"""

from collections.abc import Mapping
from typing import NamedTuple

from stepstream.jobs.statistics.alarms import REWARD, SUCCESS, Series
from stepstream.jobs.statistics.moments import Moments
from stepstream.topics.events import ComponentSums, LabeledTrajectory, RewardComponent, new_component_sums

UNIT = 1_000_000
_HOUR_US = 3600 * 1_000_000


class CohortKey(NamedTuple):
    """Cohort and period: what a ComponentStats record is about, but for its partition."""

    environment: str
    agent: str
    model: str
    split: str
    reward_spec: str
    policy_version: int | None
    hour: int


def place_of(labelled: LabeledTrajectory) -> CohortKey:
    """Where a trajectory is counted."""
    return CohortKey(
        labelled["environment"],
        labelled["agent"],
        labelled["model"],
        labelled["split"],
        labelled["reward_spec"],
        labelled["version_max"],
        labelled["ended_at_us"] // _HOUR_US,
    )


def values_of(labelled: LabeledTrajectory) -> dict[Series, int]:
    """The trajectory's value of each series, in millionths: of a component the sum over its steps."""
    values = {Series(REWARD, REWARD, 1.0, 1): labelled["reward"]}
    if labelled["success"] is not None:
        values[Series(SUCCESS, SUCCESS, 0.0, 1)] = float(labelled["success"])
    for step in labelled["steps"]:
        for term in step["components"]:
            series = Series(term["kind"], term["name"], term["weight"], direction(term))
            values[series] = values.get(series, 0.0) + term["value"]
    return {series: round(value * UNIT) for series, value in values.items()}


def direction(term: RewardComponent) -> int:
    """1 where more of it is better, by the weight that it is paid with or, where it is not paid, declared with."""
    if term["weight"]:
        return 1 if term["weight"] > 0 else -1
    return term["direction"]


def told(sums: Mapping[Series, Moments]) -> list[ComponentSums]:
    """Sums in millionths as records; series that have no trajectories any more are left out."""
    return [
        new_component_sums(
            name=series.name,
            kind=series.kind,
            weight=series.weight,
            direction=series.direction,
            trajectories=moments.trajectories,
            groups=moments.groups,
            total=moments.total / UNIT,
            squares=moments.squares / UNIT**2,
            group_squares=moments.group_squares / UNIT**2,
            group_cross=moments.group_cross / UNIT,
            group_sizes=moments.group_sizes,
        )
        for series, moments in sorted(sums.items())
        if moments.trajectories
    ]


def heard(components: list[ComponentSums]) -> dict[Series, Moments]:
    """The reverse of `told`, with values in their own unit."""
    return {
        Series(each["kind"], each["name"], each["weight"], each["direction"]): Moments(
            each["trajectories"],
            each["groups"],
            each["total"],
            each["squares"],
            each["group_squares"],
            each["group_cross"],
            each["group_sizes"],
        )
        for each in components
    }
