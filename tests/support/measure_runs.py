"""Run the measure job over one partition."""

from fold_harness import FoldRun, MemoryState

from stepstream.jobs.statistics.fold import JOB, MeasureFold


def measure_run(max_trajectories: int = 1_000) -> FoldRun:
    state = MemoryState()
    fold = MeasureFold(state, keep_days=37, max_trajectories=max_trajectories)  # type: ignore[arg-type]
    return FoldRun(JOB, fold, state)
