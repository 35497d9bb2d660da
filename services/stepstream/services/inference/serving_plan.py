"""Decide what a worker loads next, from what the log says and what it holds. Pure: time is passed in."""

from collections.abc import Collection
from dataclasses import dataclass

from stepstream.topics.events import Track
from stepstream.versions.rollouts import ServedVersions

_FIRST_RETRY_S = 30.0
_LONGEST_RETRY_S = 600.0


def versions_to_try(served: ServedVersions, track: Track, held: int | None, published: Collection[int]) -> list[int]:
    """Return the versions to load on a track, the best first; empty: what it holds is right.

    A decided version has no substitute. The newest one has: if it fails, the next older one that is newer than what
    the worker holds.

    Args:
        served: what the log says.
        track: the track.
        held: version that the worker holds on it; None: none.
        published: versions that exist and were not removed.
    """
    wanted = served.version_of(track)
    if wanted is None or wanted == held:
        return []
    is_decided = not served.follows_newest or (track == "canary" and served.canary is not None)
    if is_decided:
        return [wanted]
    older = [version for version in published if version < wanted and (held is None or version > held)]
    return [wanted, *sorted(older, reverse=True)]


@dataclass(slots=True)
class Refusal:
    """Why a version was not loaded, and when to try it again: a store that was away comes back."""

    reason: str
    retry_at: float
    delay_s: float


class Refusals:
    """The refused versions, by track, version and the events that asked for it: a new event is a new attempt."""

    def __init__(self) -> None:
        self._by_attempt: dict[tuple[Track, int, str, str], Refusal] = {}

    def add(self, track: Track, version: int, events: tuple[str, str], reason: str, now: float) -> None:
        """Note a failed attempt at the time `now` in seconds."""
        before = self._by_attempt.get((track, version, *events))
        delay_s = _FIRST_RETRY_S if before is None else min(2 * before.delay_s, _LONGEST_RETRY_S)
        self._by_attempt[track, version, *events] = Refusal(reason, now + delay_s, delay_s)

    def may_try(self, track: Track, version: int, events: tuple[str, str], now: float) -> bool:
        """Return True if the version was not refused, or long enough ago."""
        refusal = self._by_attempt.get((track, version, *events))
        return refusal is None or now >= refusal.retry_at

    def reason(self, track: Track, version: int, events: tuple[str, str]) -> str | None:
        """Return why the newest attempt failed; None: there was none."""
        refusal = self._by_attempt.get((track, version, *events))
        return None if refusal is None else refusal.reason
