"""The `label` job: collect the steps and feedback of each trajectory, close it, and publish its rewards and sequences.

Run it as `python -m stepstream.jobs.label`. It reads `governed-steps`, `governed-feedback`, its own decisions on
`closures`, and decisions of people and jobs on `curation`. It follows the tables `policies`, `consents`, `erasures` and
`reward-specs`, and reviews the saved trajectories when one of them changes. It writes `labeled-trajectories` and
`closures`. The logic is in `labels/` and `rewards/`.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import ClassVar

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.governance.policy_tables import RetryingTrajectoryPolicies, TablePolicies
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.labels import NAME, VERSION
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import load_spec
from stepstream.jobs.rewards.spec_lookup import FixedSpec, SpecLookup, TableSpecs
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.retry import RetryingCodec
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.access import wait_for_access
from stepstream.topics.catalogue import CLOSURES, CURATION, GOVERNED_FEEDBACK, GOVERNED_STEPS, LABELED_TRAJECTORIES


class Label:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (GOVERNED_STEPS, GOVERNED_FEEDBACK, CLOSURES, CURATION)
    restored_topic: ClassVar[str | None] = LABELED_TRAJECTORIES
    max_event_bytes: int | None = None

    def __init__(
        self,
        settings: Settings,
        policies: TrajectoryPolicies | None = None,
        specs: SpecLookup | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the job.

        Args:
            settings: of the program.
            policies: consulted for each label; None: everything is allowed.
            specs: reward specifications; None: the one of the settings.
            cancelled: returns True to stop waiting for keys.
        """
        self._settings = settings.label
        self._specs = specs or FixedSpec(load_spec(settings.label.reward_spec))
        self._codec = sealing_codec(settings, keep_arrays=True)
        self._policies, self._cancelled = policies, cancelled

    def close(self) -> None:
        """Close the connections."""
        self._codec.close()

    def fold(self, state: PartitionState) -> LabelFold:
        """Return the fold of one partition."""
        return LabelFold(
            state,
            self._specs,
            RetryingCodec(self._codec, self._cancelled),
            self._policies,
            self._settings,
        )


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop`."""
    wait_for_access(settings.kafka, "label", lambda: bool(stop))
    with ExitStack() as stack:
        policies = stack.enter_context(TablePolicies(settings))
        specs = stack.enter_context(TableSpecs(settings))
        # A label needs the current consent and reward specification: wait until both tables are read to the end.
        if not (policies.wait(lambda: bool(stop)) and specs.wait(lambda: bool(stop))):
            return

        def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
            job = stack.enter_context(
                closing(Label(settings, RetryingTrajectoryPolicies(policies, cancelled), specs, cancelled))
            )
            return FoldProcessor(settings, job, cancelled)

        run_job(settings, stop, NAME, Label.inputs, make)


if __name__ == "__main__":
    run(NAME, main)
