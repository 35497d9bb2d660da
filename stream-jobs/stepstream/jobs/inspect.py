"""The `inspect` job: search a sample of governed steps for names of people that redaction missed.

Run it as `python -m stepstream.jobs.inspect`. It reads `governed-steps`. It writes the number of names in each searched
step to `governance-audit`. If the tenant's policy says so, it also writes a hold to `curation`: the trajectory is not
trained on until a person releases it. A language model for names needs tens of milliseconds a step, so this job runs
beside the stream. The policy sets the sample size (`[inspect] share`); the setting `inspect.model` names the model.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar

from stepstream.config import LabelSettings, Settings
from stepstream.config.secrets import pseudonym_key
from stepstream.core.process import Stop, run
from stepstream.jobs.erasure.late_keys import LateKeys
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.inspect_fold import NAME, VERSION, InspectFold, Inspection
from stepstream.jobs.governance.name_recogniser import Recogniser, load_recogniser
from stepstream.jobs.governance.policy_tables import ReadBarrier, RetryingPolicies
from stepstream.jobs.runtime.expiry import SLACK_DAYS, Expiry
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.catalogue import CONSENTS, GOVERNED_STEPS, POLICIES
from stepstream.topics.table import Table


class Inspect:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (GOVERNED_STEPS,)
    restored_topic: ClassVar[str | None] = None
    max_event_bytes: int | None = None

    def __init__(
        self,
        label: LabelSettings,
        policy: Callable[[str], tuple[int, Inspection]],
        recogniser: Recogniser,
        wait_until_ready: Callable[[], None],
    ) -> None:
        """Create the job.

        Args:
            label: settings that bound the state.
            policy: as in `InspectFold`.
            recogniser: counts names.
            wait_until_ready: blocks until the policies are read.
        """
        self._keep_days, self._most_held = label.keep_days + SLACK_DAYS, label.max_trajectories
        self._policy, self._recogniser, self._wait_until_ready = policy, recogniser, wait_until_ready

    def fold(self, state: PartitionState) -> InspectFold:
        """Build the fold of one partition; block until the policies are read."""
        self._wait_until_ready()
        held = Expiry(state, self._keep_days, self._most_held)
        return InspectFold(self._policy, self._recogniser, held)


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop` is set."""
    recogniser = load_recogniser(settings.inspect.model)
    with ExitStack() as stack:
        policies, consents = (stack.enter_context(Table(settings, topic)) for topic in (POLICIES, CONSENTS))
        stack.callback(LateKeys(settings).close)
        active = ActivePolicies(pseudonym_key(settings), policies, consents)

        def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
            retrying = RetryingPolicies(active, [policies, consents], cancelled)

            def policy(tenant: str) -> tuple[int, Inspection]:
                of_tenant = retrying.of(tenant)
                return of_tenant.version, of_tenant.policy.inspect

            job = Inspect(settings.label, policy, recogniser, ReadBarrier([policies], cancelled).wait)
            return FoldProcessor(settings, job, cancelled)

        run_job(settings, stop, NAME, Inspect.inputs, make)


if __name__ == "__main__":
    run(NAME, main)
