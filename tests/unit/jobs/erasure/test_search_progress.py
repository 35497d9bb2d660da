"""A search reports how much it has read, and the time left."""

from stepstream.jobs.erasure.search_progress import SearchProgress
from stepstream.topics.consumer import Event


def test_progress_names_records_read_total_and_time_left() -> None:
    lines: list[str] = []
    times = iter([0.0, 1.0, 6.0, 6.0, 8.0])  # begin, two checks, report, end
    progress = SearchProgress({("steps", 0): (1000, 9000)}, lines.append, lambda: next(times))
    for _ in progress.follow(Event("steps", 0, offset, "", None) for offset in range(1000, 3000)):
        pass
    progress.end()
    assert lines == ["searched 2,000 of 8,000 records (25%), 18 s left", "searched 8,000 records in 8 s"]
