"""The `govern` job: what agents told becomes safe to learn from, or a dead letter.

Run it as `python -m stepstream.jobs.govern`. Reads `steps` and `feedback`; writes `governed-steps`,
`governed-feedback` and, about what it found, `governance-audit`. Checks and redaction are in `governance/`
(`validation.py`, `governing.py`) and `redaction/`; what each tenant wants is in `governance/ruling.py`. Until policies
and consents are known, and where a policy cannot be applied, events wait.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar

from stepstream.config import Settings
from stepstream.config.secrets import pseudonym_key
from stepstream.core.process import Stop, run
from stepstream.crypto.erasures import Erased
from stepstream.crypto.key_ring import ERASURES
from stepstream.jobs.erasure.late_keys import LateKeys
from stepstream.jobs.governance import NAME, VERSION
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold, PolicySource
from stepstream.jobs.governance.policy_tables import RetryingPolicies
from stepstream.jobs.governance.state import Persons
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.retry import retry_while
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.table import Table

log = logging.getLogger(__name__)


_TABLE_WAIT_S = 2.0


class Govern:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = ("steps", "feedback")
    remembers: ClassVar[str | None] = None

    def __init__(
        self,
        settings: Settings,
        rulings: PolicySource,
        erased: Callable[[str, str, int], bool],
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`erased` as in `GovernFold`; `ready` blocks until the rulings are known."""
        self.max_event_bytes: int | None = settings.govern.max_event_bytes
        self._settings, self._person_days = settings.govern, settings.label.keep_days
        self._rulings, self._erased, self._ready = rulings, erased, ready

    def fold(self, state: PartitionState) -> GovernFold:
        """One partition; blocks until the rulings are known."""
        self._ready()
        return GovernFold(
            self._rulings,
            dedup_days=self._settings.dedup_days,
            max_future_s=self._settings.max_future_s,
            now_us=lambda: time.time_ns() // 1000,
            erased=self._erased,
            persons=Persons(self._person_days),
        )


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop."""
    with ExitStack() as held:
        policies, consents, erasures = tables = [
            held.enter_context(Table(settings, topic)) for topic in ("policies", "consents", ERASURES)
        ]
        held.callback(LateKeys(settings).close)
        rulings = ActivePolicies(pseudonym_key(settings), policies, consents)

        def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
            def ready() -> None:
                for table in tables:
                    retry_while(lambda table=table: _known(table), _NotKnown, cancelled)  # type: ignore[misc]

            job = Govern(settings, RetryingPolicies(rulings, cancelled), Erased(settings, erasures), ready)
            return FoldProcessor(settings, job, cancelled)

        run_job(settings, stop, NAME, Govern.inputs, make)


class _NotKnown(Exception):
    """What tenants want has not been read yet."""


def _known(table: Table) -> None:
    if not table.wait_current(_TABLE_WAIT_S):
        raise _NotKnown("policies and consents are not known yet, so nothing is governed: is Kafka away?")


if __name__ == "__main__":
    run(NAME, main)
