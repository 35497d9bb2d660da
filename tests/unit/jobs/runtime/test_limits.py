"""Too many dead letters stop a job; few, or an unfilled window, do not."""

import pytest

from stepstream.jobs.runtime.limits import WINDOW, DeadLetterShare
from stepstream.topics.process import Fatal


def test_a_full_window_above_the_limit_stops() -> None:
    share = DeadLetterShare(0.5)
    share.note(used=500, refused=499)
    share.note(used=0, refused=1)
    with pytest.raises(Fatal, match="STEPSTREAM_JOBS_DEAD_LETTER_SHARE"):
        share.note(used=0, refused=1)


def test_a_window_that_is_not_full_tells_nothing() -> None:
    DeadLetterShare(0.1).note(used=0, refused=WINDOW - 1)


def test_old_records_leave_the_window() -> None:
    share = DeadLetterShare(0.5)
    for _ in range(20):
        share.note(used=60, refused=40)
    share.note(used=WINDOW, refused=0)
    share.note(used=0, refused=500)


def test_a_limit_of_one_tolerates_everything() -> None:
    DeadLetterShare(1.0).note(used=0, refused=5 * WINDOW)
