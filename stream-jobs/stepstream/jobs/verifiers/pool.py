"""Run verifiers on cases in several threads, and retry unavailable ones for a limited time."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from stepstream.jobs.runtime.retry import BoundedRetry, Cancelled, RetriesExhausted
from stepstream.jobs.verifiers.base import Case, NoVerdict, Unavailable, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.specification import Verification

log = logging.getLogger(__name__)

Outcome = Literal["verified", "unavailable", "unanswered", "unusable", "crashed"]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of a case."""

    outcome: Outcome
    verdicts: Sequence[Verdict] = ()
    reason: str = ""


class VerifierPool:
    """Threads that run verifiers. Call `judge` from one thread; close the pool."""

    def __init__(self, parallel: int, patience_s: float, cancelled: Callable[[], bool]) -> None:
        """Start the pool.

        Args:
            parallel: most cases at once.
            patience_s: seconds of retries while a verifier is unavailable.
            cancelled: returns True to stop waiting.
        """
        self._cancelled = cancelled
        self._retry = BoundedRetry(patience_s, cancelled)
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="verifier")

    def judge(self, work: Sequence[tuple[Verification, Case]]) -> list[CaseResult]:
        """Return the result of each case; blocks until all are done.

        An unavailable verifier is retried for `patience_s`. After that each of its cases gets one attempt until it
        works again: the others are skipped and logged, and the log goes on.

        Raises:
            Cancelled: `cancelled` returned True during the wait.
        """
        pending = [self._threads.submit(self._judged, verification, case) for verification, case in work]
        try:
            return [one.result() for one in pending]
        finally:
            for one in pending:
                one.cancel()

    def close(self) -> None:
        """Stop the threads; blocks until running cases are done."""
        self._threads.shutdown(cancel_futures=True)

    def _judged(self, verification: Verification, case: Case) -> CaseResult:
        name = verification.config.name
        try:
            return CaseResult("verified", self._retry.call(name, lambda: self._tried(verification, case), Unavailable))
        except RetriesExhausted as error:
            if error.is_first:
                log.error("skipping cases of verification '%s' until it works: %s", name, error)
            return CaseResult("unavailable", reason=str(error))
        except NoVerdict as error:
            log.warning("skipped a case of verification '%s': %s", name, error)
            return CaseResult("unanswered", reason=str(error))
        except UnverifiableCase as error:
            return CaseResult("unusable", reason=str(error))
        except Cancelled:
            raise
        except Exception as error:  # a plug-in's defect must not stop the others
            log.exception("skipped a case: defect in verification '%s'", name)
            return CaseResult("crashed", reason=type(error).__name__)

    def _tried(self, verification: Verification, case: Case) -> Sequence[Verdict]:
        if self._cancelled():
            raise Cancelled
        return verification.verifier.verify(case)
