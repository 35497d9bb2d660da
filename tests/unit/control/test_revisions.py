"""Test that revised outcomes are noticed once, and that late, new and erased ones are no revision."""

import pytest

from stepstream.services.control.revisions import Revisions
from stepstream.services.control.scope import Scope
from stepstream.services.control.statistics import OutcomeRow

SCOPE, OTHER = Scope("default", "a", "m"), Scope("default", "b", "m")
Outcomes = dict[str, bool | None]


def rows(outcomes: Outcomes) -> list[OutcomeRow]:
    return [OutcomeRow(1, "stable", "", success, "", "f", "", False, name) for name, success in outcomes.items()]


def fleet(n: int, **changed: bool | None) -> Outcomes:
    """Return `n` successes with changes."""
    return {f"t{i}": True for i in range(n)} | changed


@pytest.mark.parametrize(
    ("before", "after", "is_revised"),
    [
        ({"t0": True}, {"t0": True}, False),
        ({"t0": True}, {"t0": False}, True),
        ({"t0": False}, {"t0": True}, True),
        ({"t0": None}, {"t0": False}, False),
        ({"t0": True}, {"t1": False}, False),
        ({"t0": True}, {"t0": None}, False),
        ({}, {"t0": True}, False),
        (fleet(100), fleet(200, t0=False), False),
        (fleet(100), fleet(200, t0=False, t1=False), True),
        ({"": True}, {"": False}, False),
    ],
)
def test_an_outcome_that_changed_is_revised(before: Outcomes, after: Outcomes, is_revised: bool) -> None:
    revisions = Revisions()
    assert not revisions.look(SCOPE, rows(before))
    assert not revisions.look(OTHER, rows(after)), "another scope"
    assert revisions.look(SCOPE, rows(after)) == is_revised
    assert not revisions.look(SCOPE, rows(after)), "the next snapshot"
