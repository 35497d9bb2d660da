"""The `judge` job: score each step by the user's next message, with the configured model.

Run it as `python -m stepstream.jobs.judge`. It needs `judge.url` and `judge.model`. It reads `governed-steps`, and
writes `feedback` (source `judge`) about the previous step, which `govern` treats like any other. The feedback is named
`next_state` if `judge-calibrations` shows that this judge agrees with people, and `shadow.next_state` otherwise. A
reward specification decides its weight. The job retries an unavailable judge for `judge.patience_s`, then skips steps
and logs
it: the judge never blocks the log.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import ClassVar

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop, run
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.governance.policy_tables import RetryingTrajectoryPolicies, TablePolicies
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.judging.calibration import DEFAULT_GATE, rejection_of
from stepstream.jobs.judging.fold import COUNTED, NAME, VERSION, JudgeFold, StepScorer
from stepstream.jobs.judging.llm import JudgeClient
from stepstream.jobs.judging.next_state import digest
from stepstream.jobs.runtime.day_limit import DayLimit
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.retry import Decoder, RetryingCodec
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.access import wait_for_access
from stepstream.topics.catalogue import GOVERNED_STEPS, JUDGE_CALIBRATIONS
from stepstream.topics.table import Table

_STEPS_OF_A_CALL = 2
"""Steps in a batch for each parallel call. Small: after a cancelled batch, the judge scores all of its steps again."""


class Judge:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (GOVERNED_STEPS,)
    restored_topic: ClassVar[str | None] = None
    max_event_bytes: int | None = None

    def __init__(
        self,
        settings: Settings,
        scorer: StepScorer,
        codec: Decoder,
        policies: TrajectoryPolicies,
        rejection: Callable[[], str | None],
    ) -> None:
        self._settings = settings.judge
        self._scorer, self._codec, self._policies, self._rejection = scorer, codec, policies, rejection

    def fold(self, state: PartitionState) -> JudgeFold:
        """Return the fold of one partition."""
        only = self._settings.agents, self._settings.tenants
        limit = DayLimit(state, COUNTED, self._settings.max_steps)
        return JudgeFold(self._scorer, self._codec, self._policies, *only, self._rejection, limit)


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop`.

    Raises:
        Fatal: no judge is configured.
    """
    if not settings.judge.url or not settings.judge.model:
        raise Fatal("no judge is configured: set STEPSTREAM_JUDGE_URL and STEPSTREAM_JUDGE_MODEL")
    wait_for_access(settings.kafka, "judge", lambda: bool(stop))
    with ExitStack() as stack:
        codec = stack.enter_context(closing(sealing_codec(settings, keep_arrays=True)))
        policies = stack.enter_context(TablePolicies(settings))
        calibrations = stack.enter_context(Table(settings, JUDGE_CALIBRATIONS))
        if not (policies.wait(lambda: bool(stop)) and calibrations.wait_until_current(lambda: bool(stop))):
            return
        judge = digest(settings.judge.model)

        def rejection() -> str | None:
            return rejection_of(calibrations.get(judge), DEFAULT_GATE)

        def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
            scorer = stack.enter_context(closing(JudgeClient(settings.judge, cancelled)))
            retrying = RetryingTrajectoryPolicies(policies, cancelled)
            job = Judge(settings, scorer, RetryingCodec(codec, cancelled), retrying, rejection)
            return FoldProcessor(settings, job, cancelled)

        run_job(settings, stop, NAME, Judge.inputs, make, batch=_STEPS_OF_A_CALL * settings.judge.parallel)


if __name__ == "__main__":
    run(NAME, main)
