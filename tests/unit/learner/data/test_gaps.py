"""Test that staleness counts the versions of a line, without those that were taken back."""

from typing import Any

from buffers import log_of
from labelled_records import group_of

from stepstream.learner.data.attempt import Attempt, without_gaps


def attempt(version: int) -> Attempt:
    [found] = log_of(*group_of("g", 1, versions=(version, version)))
    return found


def test_numbers_rise_by_the_versions_that_were_taken_back_after_them() -> None:
    # Of a lineage with root 3, versions 5 to 7 were taken back: the line is 3, 4, 8, 9.
    def staleness(version: int) -> Any:
        counted = without_gaps(attempt(version), {5, 6, 7}, 3)
        [tokens] = counted.sequences
        assert set(tokens.versions.tolist()) == {counted.version_min}
        return counted.staleness(9)

    assert [staleness(version) for version in (9, 8, 4, 3)] == [0, 1, 2, 3]
    assert staleness(2) == 7, "before the root nothing changes"
    sampled = attempt(4)
    assert without_gaps(sampled, (), 3) is sampled
