"""Too many dead letters stop a job, unless one tenant's alone; few, or an unfilled window, do not."""

import pytest

from stepstream.core.process import Fatal
from stepstream.jobs.runtime.dead_letter_limit import ENOUGH, REMEMBERED, WINDOW, DeadLetterShare


def note(share: DeadLetterShare, used: int = 0, refused: int = 0, tenant: str = "default") -> None:
    share.note({tenant: used}, {tenant: refused})


def test_a_full_window_above_the_limit_stops() -> None:
    share = DeadLetterShare(0.5)
    note(share, used=500, refused=499)
    note(share, refused=1)
    with pytest.raises(Fatal, match="STEPSTREAM_JOBS_DEAD_LETTER_SHARE"):
        note(share, refused=1)


def test_a_window_that_is_not_full_tells_nothing() -> None:
    note(DeadLetterShare(0.1), refused=WINDOW - 1)


def test_old_records_leave_the_window() -> None:
    share = DeadLetterShare(0.5)
    for _ in range(20):
        note(share, used=60, refused=40)
    note(share, used=WINDOW)
    note(share, refused=500)


def test_a_limit_of_one_tolerates_everything() -> None:
    note(DeadLetterShare(1.0), refused=5 * WINDOW)


@pytest.mark.parametrize("tenant", ["theirs", ""])
@pytest.mark.parametrize("limit", [0.1, 0.5])
def test_a_flood_of_one_tenant_is_told_and_stops_nobody(
    tenant: str, limit: float, caplog: pytest.LogCaptureFixture
) -> None:
    share = DeadLetterShare(limit)
    note(share, used=ENOUGH, refused=1)
    for _ in range(4):
        note(share, refused=WINDOW, tenant=tenant)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    assert all(("tenant 'theirs'" if tenant else "cannot be read") in line for line in told)


def test_what_fails_for_others_too_is_not_one_tenants_doing() -> None:
    share = DeadLetterShare(0.5)
    note(share, used=ENOUGH, refused=ENOUGH + 1, tenant="ours")
    with pytest.raises(Fatal):
        note(share, refused=WINDOW, tenant="theirs")


def test_what_others_sent_long_ago_or_hardly_anything_of_theirs_proves_nothing() -> None:
    share = DeadLetterShare(0.5)
    note(share, used=WINDOW, tenant="ours")
    for _ in range(REMEMBERED // WINDOW - 1):
        note(share, refused=WINDOW, tenant="theirs")
    with pytest.raises(Fatal):
        note(share, refused=WINDOW, tenant="theirs")
    again = DeadLetterShare(0.5)
    note(again, used=ENOUGH - 1, tenant="ours")
    with pytest.raises(Fatal):
        note(again, refused=WINDOW, tenant="theirs")
