"""The `verify` job: run verifiers on closed trajectories, as a verification file configures.

Run it as `python -m stepstream.jobs.verify`. It needs `verify.file`. It reads `governed-steps`, and from
`governed-feedback` and `closures` the end of each trajectory. It follows `consents`, `erasures`, `policies` and
`judge-calibrations`. It writes `feedback` (source `verifier`, `test`, `judge` or `prm`), which `govern` treats like any
other. A reward specification decides its weight. The job retries an unavailable verifier for `verify.patience_s`, then
skips its cases and logs it: a verifier never blocks the log.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import ClassVar

from stepstream.config import LabelSettings, Settings
from stepstream.core.process import Fatal, Stop, run
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.governance.policy_tables import RetryingTrajectoryPolicies, TablePolicies
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.retry import Decoder, RetryingCodec
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.jobs.verifiers.fold import NAME, VERSION, CaseJudge, VerifyFold
from stepstream.jobs.verifiers.options import VerifierContext
from stepstream.jobs.verifiers.pool import VerifierPool
from stepstream.jobs.verifiers.sandbox.run import SandboxError
from stepstream.jobs.verifiers.specification import Verification, load
from stepstream.jobs.verifiers.unit_tests import UnitTests
from stepstream.topics.access import wait_for_access
from stepstream.topics.catalogue import CLOSURES, GOVERNED_FEEDBACK, GOVERNED_STEPS, JUDGE_CALIBRATIONS
from stepstream.topics.table import Table

_BATCH = 50
"""Small: after a cancelled batch, verifiers run on all of its cases again."""


class Verify:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (GOVERNED_STEPS, GOVERNED_FEEDBACK, CLOSURES)
    restored_topic: ClassVar[str | None] = None
    max_event_bytes: int | None = None

    def __init__(
        self,
        verifications: Sequence[Verification],
        judges: CaseJudge,
        codec: Decoder,
        policies: TrajectoryPolicies,
        keep_days: int,
        limits: LabelSettings,
    ) -> None:
        self._verifications, self._judges = verifications, judges
        self._codec, self._policies, self._keep_days, self._limits = codec, policies, keep_days, limits

    def fold(self, state: PartitionState) -> VerifyFold:
        """Return the fold of one partition."""
        return VerifyFold(
            state,
            self._verifications,
            self._judges,
            self._codec,
            self._policies,
            keep_days=self._keep_days,
            limits=self._limits,
        )


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop`.

    Raises:
        Fatal: no verification file is configured, or it needs a sandbox that this machine lacks.
        SettingsError: the file is invalid.
    """
    file = settings.verify.file
    if file is None:
        raise Fatal("no verification file is configured: set STEPSTREAM_VERIFY_FILE")
    # Report faults of the file and of the sandbox before waiting for Kafka.
    for verification in load(file, VerifierContext(settings, file.parent)):
        if isinstance(verification.verifier, UnitTests):
            try:
                verification.verifier.try_sandbox()
            except SandboxError as error:
                raise Fatal(f"verification '{verification.config.name}': {error}") from None
    wait_for_access(settings.kafka, "verify", lambda: bool(stop))
    with ExitStack() as stack:
        codec = sealing_codec(settings, keep_arrays=True)
        stack.callback(codec.close)
        policies = stack.enter_context(TablePolicies(settings))
        calibrations = stack.enter_context(Table(settings, JUDGE_CALIBRATIONS))
        # A calibrated judge must not be taken for an uncalibrated one: wait until the table is read to the end.
        if not (calibrations.wait_until_current(lambda: bool(stop)) and policies.wait(lambda: bool(stop))):
            return

        def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
            context = VerifierContext(settings, file.parent, calibrations, cancelled)
            pool = VerifierPool(settings.verify.parallel, settings.verify.patience_s, cancelled)
            stack.callback(pool.close)
            job = Verify(
                load(file, context),
                pool,
                RetryingCodec(codec, cancelled),
                RetryingTrajectoryPolicies(policies, cancelled),
                settings.verify.keep_days,
                settings.label,
            )
            return FoldProcessor(settings, job, cancelled)

        run_job(settings, stop, NAME, Verify.inputs, make, batch=_BATCH)


if __name__ == "__main__":
    run(NAME, main)
