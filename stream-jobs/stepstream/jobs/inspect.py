"""The `inspect` job: searches a sample of governed steps for names of people that redaction let through.

Run it as `python -m stepstream.jobs.inspect`. Reads `governed-steps`; writes `governance-audit` (that a step was
searched, and how many names it has) and, where the tenant's policy says so, `curation` (its trajectory is kept out of
training until a person releases it). A language model for names takes tens of milliseconds a step, so it stands beside
the stream and not in it. How much is searched is `[inspect] share` in the policy; the model is `inspect.model`.
"""

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar

from stepstream.config import Settings
from stepstream.config.secrets import pseudonym_key
from stepstream.core.process import Stop, run
from stepstream.jobs.erasure.late_keys import LateKeys
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.inspect_fold import NAME, VERSION, InspectFold, Inspection, Recogniser, SpacyNames
from stepstream.jobs.governance.policy_tables import RetryingPolicies
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.retry import retry_while
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.table import Table

_TABLE_WAIT_S = 2.0


class NoModel(SystemExit):
    """There is nothing to search with; the message says what to install."""


def recogniser_of(model: str) -> Recogniser:
    """The names of a spaCy model: an installed package's name, or a folder.

    Raises:
        NoModel: none is set, or it is not there.
    """
    if not model:
        raise NoModel("inspect.model is not set: name an installed spaCy model, or the folder of one")
    if importlib.util.find_spec("spacy") is None:
        raise NoModel("the job inspect needs spaCy: install stepstream[detectors]")
    import spacy

    try:
        return SpacyNames(spacy.load(model))
    except OSError as error:
        raise NoModel(f"inspect.model: spaCy cannot load {model}; install it, or name its folder") from error


class Inspect:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = ("governed-steps",)
    remembers: ClassVar[str | None] = None
    max_event_bytes: int | None = None

    def __init__(
        self, policy: Callable[[str], tuple[int, Inspection]], recogniser: Recogniser, ready: Callable[[], None]
    ) -> None:
        """`ready` blocks until the policies are known."""
        self._policy, self._recogniser, self._ready = policy, recogniser, ready

    def fold(self, state: PartitionState) -> InspectFold:
        """One partition; blocks until the policies are known."""
        self._ready()
        return InspectFold(self._policy, self._recogniser)


class _NotKnown(Exception):
    """Policies have not been read yet."""


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop."""
    recogniser = recogniser_of(settings.inspect.model)
    with ExitStack() as held:
        policies, consents = (held.enter_context(Table(settings, topic)) for topic in ("policies", "consents"))
        held.callback(LateKeys(settings).close)
        rulings = ActivePolicies(pseudonym_key(settings), policies, consents)

        def known() -> None:
            if not policies.wait_current(_TABLE_WAIT_S):
                raise _NotKnown("policies are not known yet, so nothing is searched: is Kafka away?")

        def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
            patient = RetryingPolicies(rulings, cancelled)

            def policy(tenant: str) -> tuple[int, Inspection]:
                ruling = patient.of(tenant)
                return ruling.version, ruling.policy.inspect

            job = Inspect(policy, recogniser, lambda: retry_while(known, _NotKnown, cancelled))
            return FoldProcessor(settings, job, cancelled)

        run_job(settings, stop, NAME, Inspect.inputs, make)


if __name__ == "__main__":
    run(NAME, main)
