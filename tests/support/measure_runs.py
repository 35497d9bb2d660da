"""Run the measure job over one partition."""

from fold_harness import FoldRun, MemoryState

from stepstream.jobs.statistics.fold import JOB, MeasureFold


def measure_run() -> FoldRun:
    state = MemoryState()
    return FoldRun(JOB, MeasureFold(state, keep_days=37), state)  # type: ignore[arg-type]
