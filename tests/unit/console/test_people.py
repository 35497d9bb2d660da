"""Test which erasures the page People shows as in progress."""

from stepstream.services.console.api.people import unfinished


def test_an_erasure_is_in_progress_until_a_later_proof() -> None:
    proof = {"tenant": "a", "subject": "x", "finished_at": 20}
    requests = [{"tenant": "a", "subject": "x", "requested_at": at} for at in (10, 30)]
    assert [row["requested_at"] for row in unfinished(requests, [proof])] == [30]
    assert len(unfinished([{"tenant": "b", "subject": "x", "requested_at": 10}], [proof])) == 1
