"""Decide whether a call to the inference workers is sent again after a failure."""

from dataclasses import dataclass

from stepstream.services.gateway.errors import UpstreamDied, UpstreamSilent
from stepstream.services.gateway.http.client import ReplyTimeout, Unreachable

UNAVAILABLE = frozenset({502, 503, 504})
"""Statuses of a starting worker, or of a proxy whose worker is down: handled like a refused connection."""


@dataclass(slots=True)
class Attempts:
    """The attempts of one call that a worker accepted."""

    limit: int
    longest_s: float
    """Seconds after which a failed attempt was the last: the worker may have done most of the work."""
    failed: int = 0

    def fail(self, error: Exception, seconds: float) -> None:
        """Count an attempt that ended without an answer after `seconds`.

        Raises:
            UpstreamDied, UpstreamSilent: it was the last one.
        """
        if isinstance(error, Unreachable):
            return
        self.failed += 1
        fault = str(error) or type(error).__name__
        if isinstance(error, ReplyTimeout):
            raise UpstreamSilent(f"an inference worker took the call and was silent for too long: {fault}") from error
        if seconds > self.longest_s:
            raise UpstreamDied(
                f"an inference worker died after {seconds:.0f} s with the call, which is not sent again after more "
                f"than {self.longest_s:g} s (gateway.upstream_deadline_s): {fault}"
            ) from error
        if self.failed >= self.limit:
            raise UpstreamDied(
                f"{self.failed} inference workers took the call and gave no answer; gateway.upstream_attempts allows "
                f"no more: {fault}"
            ) from error

    def may_repeat(self, status: int, seconds: float) -> bool:
        """Return True if a call that got a status of `UNAVAILABLE` after `seconds` may be sent again."""
        if status == 503:  # the worker did not accept the call
            return True
        self.failed += 1
        return self.failed < self.limit and seconds <= self.longest_s
