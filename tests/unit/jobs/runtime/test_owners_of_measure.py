"""Test that no order of owners, crashes, pauses and aborted transactions changes what `measure` publishes in effect."""

import pytest
from owner_schedules import check_all, parts


@pytest.mark.repeats
@pytest.mark.parametrize("seeds", parts("measure"), ids=lambda seeds: str(seeds.start))
def test_a_schedule_of_owners_has_the_effect_of_one_owner(seeds: range) -> None:
    check_all(seeds)
