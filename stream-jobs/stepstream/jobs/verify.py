"""The `verify` job: has verifiers judge closed trajectories, as a verification file declares.

Run it as `python -m stepstream.jobs.verify`; it needs `verify.file`. Reads `governed-steps`, and from
`governed-feedback` and `closures` that a trajectory is over; follows `consents`, `erasures`, `policies` and
`judge-calibrations`. Writes `feedback` (source `verifier`, `test`, `judge` or `prm`), which `govern` then passes on
like any other: a reward specification decides what it counts for. A verifier that cannot work is waited for a while and
then passed over, loudly; the log is never held up for it.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import ClassVar

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop, run
from stepstream.crypto.key_ring import codec_of
from stepstream.jobs.governance.policy_tables import TablePolicies
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.judging.calibration import CALIBRATIONS
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.retry import Decoder, RetryingCodec
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.jobs.verifiers.fold import CLOSURES, ENDS, NAME, STEPS, VERSION, Judges, VerifyFold
from stepstream.jobs.verifiers.options import Surroundings
from stepstream.jobs.verifiers.pool import Bench
from stepstream.jobs.verifiers.sandbox.run import SandboxError
from stepstream.jobs.verifiers.specification import Verification, load
from stepstream.jobs.verifiers.unit_tests import UnitTests
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.table import Table

_BATCH = 50
"""Small: a batch that is given up is judged again."""


class Verify:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (STEPS, ENDS, CLOSURES)
    remembers: ClassVar[str | None] = None
    max_event_bytes: int | None = None

    def __init__(
        self,
        verifications: Sequence[Verification],
        judges: Judges,
        codec: Decoder,
        rules: TrajectoryPolicies,
        keep_days: int,
    ) -> None:
        self._verifications, self._judges = verifications, judges
        self._codec, self._rules, self._keep_days = codec, rules, keep_days

    def fold(self, state: PartitionState) -> VerifyFold:
        """One partition."""
        return VerifyFold(state, self._verifications, self._judges, self._codec, self._rules, keep_days=self._keep_days)


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop.

    Raises:
        Fatal: no verification file is configured, or it needs a sandbox that cannot be had here.
        SettingsError: the file makes no sense.
    """
    file = settings.verify.file
    if file is None:
        raise Fatal("nothing says what to verify: set STEPSTREAM_VERIFY_FILE to a verification file")
    # What is wrong with it, or with the sandbox, is told before anything is waited for.
    for verification in load(file, Surroundings(settings, file.parent)):
        if isinstance(verification.verifier, UnitTests):
            try:
                verification.verifier.try_sandbox()
            except SandboxError as error:
                raise Fatal(f"verification '{verification.declared.name}': {error}") from None
    wait_for_kafka(settings.kafka, lambda: bool(stop))
    with ExitStack() as held:
        codec = codec_of(settings)
        held.callback(codec.close)
        rules = held.enter_context(TablePolicies(settings))
        calibrations = held.enter_context(Table(settings, CALIBRATIONS))
        # A judge that may count is not taken for one that may not.
        if not (calibrations.wait_until_current(lambda: bool(stop)) and rules.wait(lambda: bool(stop))):
            return

        def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
            surroundings = Surroundings(settings, file.parent, calibrations, cancelled)
            bench = Bench(settings.verify.parallel, settings.verify.patience_s, cancelled)
            held.callback(bench.close)
            job = Verify(
                load(file, surroundings), bench, RetryingCodec(codec, cancelled), rules, settings.verify.keep_days
            )
            return FoldProcessor(settings, job, cancelled)

        run_job(settings, stop, NAME, Verify.inputs, make, batch=_BATCH)


if __name__ == "__main__":
    run(NAME, main)
