"""The `govern` job: validate, deduplicate and redact events; send invalid ones to `dead-letters`.

Run it as `python -m stepstream.jobs.govern`. It reads `steps` and `feedback`. It writes `governed-steps`,
`governed-feedback` and, about redactions and withheld events, `governance-audit`. The fold is `governance/fold.py`;
`redaction/` finds and replaces values. Events wait until policies and consents are read, and while a tenant's policy
cannot be applied.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar

from stepstream.config import Settings
from stepstream.config.secrets import pseudonym_key
from stepstream.core.prices import Prices
from stepstream.core.process import Stop, run
from stepstream.crypto.erasures import ErasureCheck
from stepstream.jobs.erasure.late_keys import LateKeys
from stepstream.jobs.governance import NAME, VERSION
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold, PolicySource
from stepstream.jobs.governance.policy_tables import ReadBarrier, RetryingPolicies
from stepstream.jobs.governance.state import COUNTED, TrajectoryPersons
from stepstream.jobs.runtime.day_limit import DayLimit
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.catalogue import CONSENTS, ERASURES, FEEDBACK, POLICIES, STEPS
from stepstream.topics.table import Table


class Govern:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (STEPS, FEEDBACK)
    restored_topic: ClassVar[str | None] = None

    def __init__(
        self,
        settings: Settings,
        policies: PolicySource,
        erased: Callable[[str, str, int], bool],
        wait_until_ready: Callable[[], None] = lambda: None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`erased` and `now_us` as in `GovernFold`; `wait_until_ready` blocks until the policies are read."""
        self.max_event_bytes: int | None = settings.govern.max_event_bytes
        self._settings, self._person_days = settings.govern, settings.label.keep_days
        self._prices = Prices(settings.gateway.prices)
        self._policies, self._erased, self._wait_until_ready = policies, erased, wait_until_ready
        self._now_us = now_us

    def fold(self, state: PartitionState) -> GovernFold:
        """Build the fold of one partition; block until the policies are read."""
        self._wait_until_ready()
        return GovernFold(
            self._policies,
            dedup_days=self._settings.dedup_days,
            max_future_s=self._settings.max_future_s,
            now_us=self._now_us,
            erased=self._erased,
            persons=TrajectoryPersons(self._person_days),
            prices=self._prices,
            limit=DayLimit(state, COUNTED, self._settings.max_events),
        )


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop` is set."""
    with ExitStack() as stack:
        policies, consents, erasures = tables = [
            stack.enter_context(Table(settings, topic)) for topic in (POLICIES, CONSENTS, ERASURES)
        ]
        stack.callback(LateKeys(settings).close)
        active = ActivePolicies(pseudonym_key(settings), policies, consents)

        def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
            retrying = RetryingPolicies(active, tables, cancelled)
            job = Govern(settings, retrying, ErasureCheck(settings, erasures), ReadBarrier(tables, cancelled).wait)
            return FoldProcessor(settings, job, cancelled)

        run_job(settings, stop, NAME, Govern.inputs, make)


if __name__ == "__main__":
    run(NAME, main)
