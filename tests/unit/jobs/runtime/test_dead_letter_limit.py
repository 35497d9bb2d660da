"""The dead-letter limit stops a job unless one tenant is responsible; few dead letters or records do not stop it."""

import pytest

from stepstream.core.process import Fatal
from stepstream.jobs.runtime.dead_letter_limit import HISTORY, MIN_FROM_OTHERS, WINDOW, DeadLetterLimit


def add(limit: DeadLetterLimit, valid: int = 0, dead: int = 0, tenant: str = "default") -> None:
    limit.add({tenant: valid}, {tenant: dead})


def test_a_full_window_above_the_limit_stops_the_job() -> None:
    limit = DeadLetterLimit(0.5)
    add(limit, valid=500, dead=499)
    add(limit, dead=1)
    with pytest.raises(Fatal, match="STEPSTREAM_JOBS_DEAD_LETTER_SHARE"):
        add(limit, dead=1)


def test_a_window_that_is_not_full_does_not_stop_the_job() -> None:
    add(DeadLetterLimit(0.1), dead=WINDOW - 1)


def test_old_records_leave_the_window() -> None:
    limit = DeadLetterLimit(0.5)
    for _ in range(20):
        add(limit, valid=60, dead=40)
    add(limit, valid=WINDOW)
    add(limit, dead=500)


def test_a_limit_of_one_allows_everything() -> None:
    add(DeadLetterLimit(1.0), dead=5 * WINDOW)


@pytest.mark.parametrize("tenant", ["noisy", ""])
@pytest.mark.parametrize("limit", [0.1, 0.5])
def test_a_flood_from_one_tenant_is_logged_and_does_not_stop_the_job(
    tenant: str, limit: float, caplog: pytest.LogCaptureFixture
) -> None:
    share = DeadLetterLimit(limit)
    add(share, valid=MIN_FROM_OTHERS, dead=1)
    for _ in range(4):
        add(share, dead=WINDOW, tenant=tenant)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert all(("tenant 'noisy'" if tenant else "cannot be decoded") in line for line in lines)


def test_dead_letters_of_other_tenants_too_stop_the_job() -> None:
    limit = DeadLetterLimit(0.5)
    add(limit, valid=MIN_FROM_OTHERS, dead=MIN_FROM_OTHERS + 1, tenant="other")
    with pytest.raises(Fatal):
        add(limit, dead=WINDOW, tenant="noisy")


def test_old_or_few_records_of_other_tenants_do_not_prove_the_job_sound() -> None:
    limit = DeadLetterLimit(0.5)
    add(limit, valid=WINDOW, tenant="other")
    for _ in range(HISTORY // WINDOW - 1):
        add(limit, dead=WINDOW, tenant="noisy")
    with pytest.raises(Fatal):
        add(limit, dead=WINDOW, tenant="noisy")
    few = DeadLetterLimit(0.5)
    add(few, valid=MIN_FROM_OTHERS - 1, tenant="other")
    with pytest.raises(Fatal):
        add(few, dead=WINDOW, tenant="noisy")
