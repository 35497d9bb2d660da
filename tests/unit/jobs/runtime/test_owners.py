"""Test the model of owners: it notices faults of the runtime, and databases that stay open hide none."""

from collections.abc import Callable

import pytest
from owner_faults import FAULTS
from owner_schedules import FIRST, SCHEDULES, check, check_all, labels, one_job, scratch_folder

from stepstream.core.process import Fatal


def test_a_schedule_that_opens_its_databases_anew_has_the_effect_of_one_owner() -> None:
    with one_job():
        for seed in range(FIRST, FIRST + SCHEDULES, 100):
            with scratch_folder() as folder:
                check(seed, folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_model_notices_a_fault(fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    with one_job(), pytest.MonkeyPatch.context() as patch:
        labels()
        fault(patch)
        with pytest.raises((AssertionError, Fatal)):
            check_all(range(300))
