"""The `judge` job: has a configured model score each step by what the user said next.

Run it as `python -m stepstream.jobs.judge`; it needs `judge.url` and `judge.model`. Reads `governed-steps`, writes
`feedback` (source `judge`) about the step before, which `govern` then passes on like any other: as `next_state` where
`judge-calibrations` says that this judge agrees with people, otherwise as `shadow.next_state`. A reward specification
decides what it counts for. A judge that is away is waited for a while and then passed over, loudly; the log is never
held up for it.
"""

from collections.abc import Callable
from typing import ClassVar

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop, run
from stepstream.crypto.key_ring import codec_of
from stepstream.jobs.governance.policy_tables import TablePolicies
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.judging.calibration import CALIBRATIONS, DEFAULT_GATE, refusal
from stepstream.jobs.judging.fold import NAME, STEPS, VERSION, JudgeFold, Scores
from stepstream.jobs.judging.llm import JudgeClient
from stepstream.jobs.judging.next_state import digest
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.retry import Decoder, RetryingCodec
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.table import Table

"""How late a user may answer: over a long weekend."""
_BATCH = 5
"""Small: a batch that is given up is asked about again."""


class Judge:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (STEPS,)
    remembers: ClassVar[str | None] = None
    max_event_bytes: int | None = None

    def __init__(
        self,
        settings: Settings,
        scores: Scores,
        codec: Decoder,
        rules: TrajectoryPolicies,
        lacks: Callable[[], str | None],
    ) -> None:
        self._settings = settings.judge
        self._scores, self._codec, self._rules, self._lacks = scores, codec, rules, lacks

    def fold(self, state: object) -> JudgeFold:
        """One partition."""
        only = self._settings.agents, self._settings.tenants
        return JudgeFold(self._scores, self._codec, self._rules, *only, self._lacks)


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop.

    Raises:
        Fatal: no judge is configured.
    """
    if not settings.judge.url or not settings.judge.model:
        raise Fatal("there is no judge to ask: set STEPSTREAM_JUDGE_URL and STEPSTREAM_JUDGE_MODEL")
    wait_for_kafka(settings.kafka, lambda: bool(stop))
    codec = codec_of(settings)
    try:
        with TablePolicies(settings) as rules, Table(settings, CALIBRATIONS) as calibrations:
            if not (rules.wait(lambda: bool(stop)) and calibrations.wait_until_current(lambda: bool(stop))):
                return
            judge = digest(settings.judge.model)

            def lacks() -> str | None:
                return refusal(calibrations.get(judge), DEFAULT_GATE)

            def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
                scores = JudgeClient(settings.judge, cancelled)
                job = Judge(settings, scores, RetryingCodec(codec, cancelled), rules, lacks)
                return FoldProcessor(settings, job, cancelled)

            run_job(settings, stop, NAME, Judge.inputs, make, batch=_BATCH)
    finally:
        codec.close()


if __name__ == "__main__":
    run(NAME, main)
