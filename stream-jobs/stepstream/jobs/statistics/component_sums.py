"""Compute the contribution of a labelled trajectory to the statistics of reward components. Pure.

Values are integers (millionths): their sums and squares do not depend on the order of addition, and a newer revision
can replace an older one exactly.
"""

from collections.abc import Mapping
from typing import NamedTuple

from stepstream.jobs.statistics.alarms import REWARD, SUCCESS, Series
from stepstream.jobs.statistics.moments import Moments
from stepstream.jobs.statistics.outcome import outcome_of
from stepstream.topics.events import ComponentSums, LabeledTrajectory, RewardComponent, new_component_sums
from stepstream.topics.ids import DEFAULT_TENANT

UNIT = 1_000_000
_HOUR_US = 3600 * 1_000_000


class CohortKey(NamedTuple):
    """Cohort and period: the key of a ComponentStats record, without its partition."""

    environment: str
    agent: str
    model: str
    split: str
    reward_spec: str
    policy_version: int | None
    hour: int
    tenant: str = DEFAULT_TENANT
    """Earlier releases saved none."""


def cohort_key_of(label: LabeledTrajectory) -> CohortKey:
    """Return the cohort and period of a trajectory."""
    return CohortKey(
        label["environment"],
        label["agent"],
        label["model"],
        label["split"],
        label["reward_spec"],
        label["version_max"],
        label["ended_at_us"] // _HOUR_US,
        label["tenant"],
    )


def values_of(label: LabeledTrajectory) -> dict[Series, int]:
    """Return the trajectory's value of each series, in millionths; of a component, the sum over its steps."""
    values = {Series(REWARD, REWARD, 1.0, 1): label["reward"]}
    if (outcome := outcome_of(label)) is not None:
        values[Series(SUCCESS, SUCCESS, 0.0, 1)] = float(outcome)
    for step in label["steps"]:
        for term in step["components"]:
            series = Series(term["kind"], term["name"], term["weight"], direction(term))
            values[series] = values.get(series, 0.0) + term["value"]
    return {series: round(value * UNIT) for series, value in values.items()}


def direction(term: RewardComponent) -> int:
    """Return 1 if more is better, -1 if less is: the sign of the paid weight, or of the declared one if nothing is
    paid.
    """
    if term["weight"]:
        return 1 if term["weight"] > 0 else -1
    return term["direction"]


def to_records(sums: Mapping[Series, Moments]) -> list[ComponentSums]:
    """Return sums in millionths as records, without series that sum up to nothing.

    In a later window than that of their trajectories, sums may be negative.
    """
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
        if moments != Moments()
    ]


def from_records(components: list[ComponentSums]) -> dict[Series, Moments]:
    """Return records as sums in their own unit: the inverse of `to_records`."""
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
