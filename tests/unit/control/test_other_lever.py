"""Test that no promotion is taken back for what another lever changed after it, and that its own fall is found."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from stepstream.analytics.success import Attempts
from stepstream.services.control.decide.diagnosis import change_after_promotion
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import Finding, History, Lever, Promotion
from stepstream.services.control.scope import Scope, Serving
from stepstream.services.control.snapshot import snapshot_of
from stepstream.services.control.statistics import BeforeRow, OutcomeRow, Position, Statistics
from stepstream.topics.events import new_harness, new_rollout
from stepstream.versions.rollouts import ModelVersions

SEEDS = range(40)
ROWS = 600


class Phase(NamedTuple):
    """Stretch of traffic at one success."""

    harness: str
    weights: str
    success: float
    n: int = ROWS


def fixed(version: int = 8) -> Serving:
    """Return a serving whose weights follow no newest version."""
    versions = ModelVersions()
    versions.apply_rollout(
        new_rollout(event_id="r", occurred_at_us=1, model="m", action="promote", stable_version=version)
    )
    return Serving(versions, {})


def rows(phases: Sequence[Phase], rng: np.random.Generator) -> Iterator[OutcomeRow]:
    for phase in phases:
        for success in rng.random(phase.n) < phase.success:
            yield OutcomeRow(1, "stable", phase.harness, bool(success), "", "f", "", False, "", phase.weights)


def found(
    lever: Lever,
    before: Sequence[Phase],
    after: Sequence[Phase],
    seed: int,
    serving: Serving | None = None,
    parent: str = "old",
) -> Finding | None:
    """Return what the rule finds after a promotion of weights from 7 to 8, or of a harness from `old` to `new`."""
    rng = np.random.default_rng(seed)
    attempts = [
        BeforeRow("f", one.harness, one.weights, Attempts(one.n, int(rng.binomial(one.n, one.success))))
        for one in before
    ]
    promotion = Promotion(lever, *(("8", "7") if lever == "weights" else ("new", parent)), 0)
    statistics = Statistics(Position("p", 9), tuple(rows(after, rng)), tuple(attempts))
    history = History(promotion=promotion)
    snapshot = snapshot_of(Scope("default", "a", "m"), 9, 0, statistics, serving or fixed(), history)
    return change_after_promotion(snapshot, history, ControlPolicy())


WITHOUT_VERSIONS = {
    "weights": ([Phase("h", "8", 0.8)], [Phase("h", "8", 0.8), Phase("h", "8", 0.5)]),
    "prompt": ([Phase("old", "8", 0.8)], [Phase("new", "8", 0.8), Phase("new", "8", 0.5)]),
}
"""The same success as below, as if one version of the other lever served throughout: what the rule saw before."""


@pytest.mark.parametrize(
    ("lever", "before", "after"),
    [
        ("weights", [Phase("h", "7", 0.8)], [Phase("h", "8", 0.8), Phase("h without tool", "8", 0.5)]),
        ("weights", [Phase("h", "7", 0.8)], [Phase("h", "8", 0.8), Phase("h taken back", "8", 0.5)]),
        ("prompt", [Phase("old", "8", 0.8)], [Phase("new", "8", 0.8), Phase("new", "7", 0.5)]),
        ("prompt", [Phase("old", "8", 0.8)], [Phase("new", "8", 0.8), Phase("new without tool", "8", 0.5)]),
    ],
    ids=["tool disabled", "harness taken back", "weights taken back", "tool disabled after a harness"],
)
def test_a_fall_by_another_lever_takes_no_promotion_back(lever: Lever, before: list[Phase], after: list[Phase]) -> None:
    """Success falls from 0.8 to 0.5; without versions, all fleets lost the sound one."""
    assert all(found(lever, *WITHOUT_VERSIONS[lever], seed) for seed in SEEDS)
    assert not [seed for seed in SEEDS if found(lever, before, after, seed)]


@pytest.mark.parametrize(
    ("lever", "before", "after"),
    [
        ("weights", [Phase("h", "7", 0.9), Phase("h without tool", "7", 0.5)], [Phase("h without tool", "8", 0.5)]),
        ("prompt", [Phase("with tool", "8", 0.9), Phase("old", "8", 0.5)], [Phase("new", "8", 0.5)]),
        ("prompt", [Phase("old", "7", 0.9), Phase("old", "8", 0.5)], [Phase("new", "8", 0.5)]),
    ],
    ids=["weights after a tool", "harness after a tool", "harness after weights"],
)
def test_what_changed_shortly_before_a_promotion_is_no_fall_by_it(
    lever: Lever, before: list[Phase], after: list[Phase]
) -> None:
    assert not [seed for seed in SEEDS if found(lever, before, [after[0]._replace(n=2000)], seed)]


@pytest.mark.parametrize("lever", ["weights", "prompt"])
def test_a_fall_of_the_promoted_version_is_found_as_fast_beside_another_version(lever: Lever) -> None:
    """The delay is exactly that without the other version: only comparable trajectories count."""
    harness = ("h", "h") if lever == "weights" else ("old", "new")
    before = [Phase(harness[0], "8", 0.8)]
    for seed in SEEDS:
        alone = found(lever, before, [Phase(harness[1], "8", 0.5)], seed)
        beside = found(lever, before, [Phase(harness[1], "8", 0.5), Phase("other", "8", 0.2)], seed)
        assert alone is not None
        assert beside is not None
        assert alone == beside


def test_weights_that_follow_the_newest_version_hide_no_fall_of_a_harness() -> None:
    after = [Phase("new", str(version), 0.5, 40) for version in range(9, 24)]
    assert found("prompt", [Phase("old", "8", 0.8)], after, 1, Serving(ModelVersions(), {}))


@pytest.mark.parametrize("own", ["", "shop 1.2"])
def test_a_first_harness_is_compared_with_the_agents_own_calls(own: str) -> None:
    """An agent without a harness may name a version of its own."""
    serving = replace(
        fixed(),
        harnesses={
            one: new_harness(event_id="", occurred_at_us=0, version=one, tenant="default", agent="a")
            for one in ("new", "taken back")
        },
    )
    after = [Phase("new", "8", 0.5)]
    assert found("prompt", [Phase(own, "8", 0.8)], after, 1, serving, "")
    assert not found("prompt", [Phase("taken back", "8", 0.8)], after, 1, serving, "")
