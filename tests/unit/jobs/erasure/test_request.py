"""A request to erase a person counts each removal once, if an attempt is killed at any step."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.erasure.findings import OffsetRange
from stepstream.jobs.erasure.request import ErasureRequest

STEPS = ("steps", 0)


def reloaded(request: ErasureRequest, folder: Path) -> ErasureRequest:
    """Return the request as the next attempt reads it."""
    request.save(folder / "r.request.json")
    again = ErasureRequest.load(folder / "r.request.json")
    assert again is not None
    return again


def test_no_file_is_no_request(tmp_path: Path) -> None:
    assert ErasureRequest.load(tmp_path / "r.request.json") is None


def test_a_request_keeps_its_id(tmp_path: Path) -> None:
    request = ErasureRequest("t", 5, key_ids=["k"], consents=2, decisions=["d"])
    request.plan_ranges({STEPS: OffsetRange(3, 9, 2)}, {STEPS: 0})
    assert reloaded(request, tmp_path) == request


def test_a_range_that_a_killed_attempt_deleted_counts_once(tmp_path: Path) -> None:
    request = ErasureRequest("t", 5)
    request.plan_ranges({STEPS: OffsetRange(3, 9, 2)}, {STEPS: 0})
    request = reloaded(request, tmp_path)  # killed after the deletion: the partition begins behind it
    request.plan_ranges({STEPS: OffsetRange(12, 12, 1)}, {STEPS: 10})
    assert request.deleted == {"steps/0": OffsetRange(0, 12, 3)}


def test_a_range_that_a_killed_attempt_did_not_delete_counts_once(tmp_path: Path) -> None:
    request = ErasureRequest("t", 5)
    request.plan_ranges({STEPS: OffsetRange(3, 9, 2)}, {STEPS: 0})
    request = reloaded(request, tmp_path)  # killed before: the search finds the records again, and a new one
    request.plan_ranges({STEPS: OffsetRange(3, 12, 3)}, {STEPS: 0})
    assert request.deleted == {"steps/0": OffsetRange(0, 12, 3)}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=6))
def test_rows_count_once(attempts: list[tuple[int, bool]]) -> None:
    """Each attempt deletes all rows, or is killed after it has deleted some of them."""
    request, rows = ErasureRequest("t", 5), 5
    for deleted, is_killed in attempts:
        request.plan_rows("steps by event_id", "steps", rows)
        if is_killed:
            rows -= min(rows, deleted)
        else:
            rows = 0
            request.rows_removed("steps by event_id", "steps")
    request.plan_rows("steps by event_id", "steps", rows)
    request.rows_removed("steps by event_id", "steps")
    assert request.rows == {"steps": 5}
