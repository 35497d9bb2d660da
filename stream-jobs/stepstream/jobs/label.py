"""The `label` job: joins the steps and feedback of a trajectory, closes it, and publishes its rewards and sequences.

Run it as `python -m stepstream.jobs.label`. Reads `governed-steps`, `governed-feedback`, its own decisions on
`closures` and those of people and jobs on `curation`; follows the tables `policies`, `consents`, `erasures` and
`reward-specs`, and looks again at what it keeps when consent or a reward specification changes or somebody is erased.
Writes `labeled-trajectories` and `closures`. The logic is in `labels/` and `rewards/`.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import ClassVar

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.crypto.key_ring import codec_of
from stepstream.jobs.governance.policy_tables import TablePolicies
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.labels import CLOSURES, CURATION, LABELS, NAME, VERSION
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.labels.state import FEEDBACK, STEPS
from stepstream.jobs.rewards.spec import load_spec
from stepstream.jobs.rewards.spec_lookup import FixedSpec, SpecLookup, TableSpecs
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.retry import RetryingCodec
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.client import wait_for_kafka


class Label:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (STEPS, FEEDBACK, CLOSURES, CURATION)
    remembers: ClassVar[str | None] = LABELS
    max_event_bytes: int | None = None

    def __init__(
        self,
        settings: Settings,
        rules: TrajectoryPolicies | None = None,
        specs: SpecLookup | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """A job.

        Args:
            settings: of the program.
            rules: asked at each label; without them everything is allowed.
            specs: reward specifications; without them the one of the settings rules.
            abandoned: ends waiting for keys.
        """
        self._settings = settings.label
        self._specs = specs or FixedSpec(load_spec(settings.label.reward_spec))
        self._codec = codec_of(settings)
        self._rules, self._cancelled = rules, cancelled

    def close(self) -> None:
        """Frees the connections."""
        self._codec.close()

    def fold(self, state: PartitionState) -> LabelFold:
        """One partition."""
        return LabelFold(
            state,
            self._specs,
            RetryingCodec(self._codec, self._cancelled),
            self._rules,
            idle_timeout_s=self._settings.idle_timeout_s,
            end_grace_s=self._settings.end_grace_s,
            keep_days=self._settings.keep_days,
        )


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop."""
    wait_for_kafka(settings.kafka, lambda: bool(stop))
    with ExitStack() as held:
        rules = held.enter_context(TablePolicies(settings))
        specs = held.enter_context(TableSpecs(settings))
        # Nobody's consent is guessed, and no reward: nothing is labelled before all that was said is known.
        if not (rules.wait(lambda: bool(stop)) and specs.wait(lambda: bool(stop))):
            return

        def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
            job = held.enter_context(closing(Label(settings, rules, specs, cancelled)))
            return FoldProcessor(settings, job, cancelled)

        run_job(settings, stop, NAME, Label.inputs, make)


if __name__ == "__main__":
    run(NAME, main)
