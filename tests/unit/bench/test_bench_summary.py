"""Test the benches' statistics of few runs, and the file of finished runs."""

import math
from pathlib import Path

import pytest
from asynchrony.page import figures, learner_shares, ratios
from in_process.runs import finish, read_runs
from in_process.summary import format_interval, interval_rank, median_interval


@pytest.mark.parametrize(
    ("count", "rank", "coverage"), [(1, 1, 0.0), (2, 1, 0.5), (5, 1, 0.9375), (8, 2, 1 - 18 / 256), (20, 6, 0.9586)]
)
def test_order_statistics_that_enclose_the_median(count: int, rank: int, coverage: float) -> None:
    found_rank, found_coverage = interval_rank(count)
    assert found_rank == rank
    assert found_coverage == pytest.approx(coverage, abs=1e-4)


def test_a_run_that_missed_the_target_counts_as_infinite() -> None:
    assert median_interval([3.0, None, 1.0, 2.0, None]) == (3.0, 1.0, math.inf)
    assert format_interval([1500, None, 1000]) == "1,500 (1,000–not reached)"
    assert format_interval([None, None, 5.0]) == "not reached (5–not reached)"
    assert format_interval([]) == "—"


def test_ratios_compare_runs_of_one_seed() -> None:
    def run(mode: str, seed: int, seconds: float | None) -> dict[str, object]:
        return {"mode": mode, "seed": seed, "seconds": seconds}

    runs = [run("synchronous", 0, 90.0), run("synchronous", 1, 50.0), run("synchronous", 2, None)]
    runs += [run("asynchronous", 1, 100.0), run("asynchronous", 0, 60.0), run("asynchronous", 2, 70.0)]
    assert ratios(runs, {"mode": "synchronous"}, {"mode": "asynchronous"}) == [1.5, 0.5, None]
    assert figures(runs, [])["async_to_sync"] == 1.5
    assert figures(runs, [])["async_to_sync_separate"] is None


def test_shares_of_the_learner_s_time() -> None:
    def run(train: float, **more: object) -> dict[str, object]:
        learner = {"wait": 8.0 - train, "train": train, "publish": 2.0}
        return {"mode": "asynchronous", "seed": 0, "seconds": 1.0, "learner_s": learner, **more}

    assert learner_shares([{"mode": "asynchronous"}]) == {}  # a run without this figure
    assert learner_shares([run(4.0)]) == {"wait": 0.4, "read": 0.0, "fold": 0.0, "train": 0.4, "publish": 0.2}
    assert learner_shares([run(4.0, reader_cpu_s=1.0), run(4.0, reader_cpu_s=2.0)])["decode"] == pytest.approx(0.15)
    assert figures([run(1.0), run(2.0), run(3.0)], [])["learner_share"]["train"] == 0.2


def test_finished_runs_are_skipped_and_an_incomplete_line_is_run_again(tmp_path: Path) -> None:
    file, done = tmp_path / "deep" / "runs.jsonl", []

    def work(key: object) -> dict[str, object]:
        done.append(key)
        return {"value": len(done)}

    keys = [{"seed": 0}, {"seed": 1}]
    assert [run["value"] for run in finish(file, keys[:1], work)] == [1]
    assert [run["value"] for run in finish(file, keys, work)] == [1, 2]
    file.write_text(file.read_text()[:-5])
    assert len(read_runs(file)) == 1
