"""Has cases judged by several threads at once, with patience for a verifier that cannot work now."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from stepstream.jobs.runtime.retry import BoundedRetry, Cancelled, RetriesExhausted
from stepstream.jobs.verifiers.base import Case, Unanswered, Unavailable, Unusable, Verdict
from stepstream.jobs.verifiers.specification import Verification

log = logging.getLogger(__name__)

Became = Literal["verified", "unavailable", "unanswered", "unusable", "crashed"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a case."""

    became: Became
    verdicts: Sequence[Verdict] = ()
    reason: str = ""


class Bench:
    """Threads that judge. `judge` is for one thread; close it."""

    def __init__(self, parallel: int, patience_s: float, cancelled: Callable[[], bool]) -> None:
        """At most `parallel` cases at once; `cancelled` tells whether to give up waiting."""
        self._cancelled = cancelled
        self._patience = BoundedRetry(patience_s, cancelled)
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="verifier")

    def judge(self, work: Sequence[tuple[Verification, Case]]) -> list[Judged]:
        """What became of each case; blocks until all are done.

        A verifier that cannot work is tried again for the patience declared. Once that has passed, it is tried once a
        case until it works again: its cases are skipped, loudly, and the log goes on.

        Raises:
            Abandoned: asked to give up while waiting.
        """
        pending = [self._threads.submit(self._judged, verification, case) for verification, case in work]
        try:
            return [one.result() for one in pending]
        finally:
            for one in pending:
                one.cancel()

    def close(self) -> None:
        """Waits for what is under way."""
        self._threads.shutdown(cancel_futures=True)

    def _judged(self, verification: Verification, case: Case) -> Judged:
        name = verification.declared.name
        try:
            return Judged("verified", self._patience.ask(name, lambda: self._tried(verification, case), Unavailable))
        except RetriesExhausted as error:
            if error.news:
                log.error("verification '%s' cannot work, its cases are skipped until it can: %s", name, error)
            return Judged("unavailable", reason=str(error))
        except Unanswered as error:
            log.warning("verification '%s' skips a case: %s", name, error)
            return Judged("unanswered", reason=str(error))
        except Unusable as error:
            return Judged("unusable", reason=str(error))
        except Cancelled:
            raise
        except Exception as error:  # a plug-in's defect must not stop the others
            log.exception("verification '%s' has a defect; the case is skipped", name)
            return Judged("crashed", reason=type(error).__name__)

    def _tried(self, verification: Verification, case: Case) -> Sequence[Verdict]:
        if self._cancelled():
            raise Cancelled
        return verification.verifier.verify(case)
