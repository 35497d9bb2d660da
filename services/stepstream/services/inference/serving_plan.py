"""Decide what a worker loads next, from what the log says and what it holds. Pure: time is passed in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stepstream.topics.events import Track
from stepstream.versions.rollouts import ServedVersions

_FIRST_RETRY_S = 30.0
_LONGEST_RETRY_S = 600.0


def versions_to_try(
    served: ServedVersions, track: Track, held: int | None, published: Mapping[int, int | None]
) -> list[int]:
    """Return the versions to load on a track, the best first; empty: what it holds is right.

    The newest version has substitutes: if it fails, the next older one that is newer than what the worker holds. A
    decided version has none, unless the worker holds nothing, as after a restart. Then those that served before stand
    in for the stable version: the one before the newest promotion, then its parents, the nearest first.

    Args:
        served: what the log says.
        track: the track.
        held: version that the worker holds on it; None: none.
        published: parents of the versions that exist and were not removed; None: the root of a lineage.
    """
    wanted = served.version_of(track)
    if wanted is None or wanted == held:
        return []
    if track == "canary" and served.canary is not None:
        return [wanted]
    if served.follows_newest:
        older = [version for version in published if version < wanted and (held is None or version > held)]
        return [wanted, *sorted(older, reverse=True)]
    if held is not None:
        return [wanted]
    before = [] if served.previous_stable is None else [served.previous_stable]
    before += _parents(wanted, published)
    return [wanted, *dict.fromkeys(version for version in before if version in published and version != wanted)]


def _parents(version: int, published: Mapping[int, int | None]) -> Iterator[int]:
    """Yield the parents of a version up to the first that is not published, the nearest first."""
    parent = published.get(version)
    while parent is not None:
        yield parent
        parent = published.get(parent)


@dataclass(slots=True)
class Refusal:
    """Why a version was not loaded, and when to try it again: a store that was away comes back."""

    first_reason: str
    newest_reason: str
    retry_at: float
    delay_s: float

    @property
    def reason(self) -> str:
        """Reasons of the first attempt and of the newest: a start and a swap fail for different ones."""
        if self.newest_reason == self.first_reason:
            return self.first_reason
        return f"{self.first_reason}; when tried again: {self.newest_reason}"


class Refusals:
    """The refused versions, by track, version and the events that asked for it: a new event is a new attempt."""

    def __init__(self) -> None:
        self._by_attempt: dict[tuple[Track, int, str, str], Refusal] = {}

    def add(self, track: Track, version: int, events: tuple[str, str], reason: str, now: float) -> None:
        """Note a failed attempt at the time `now` in seconds."""
        before = self._by_attempt.get((track, version, *events))
        delay_s = _FIRST_RETRY_S if before is None else min(2 * before.delay_s, _LONGEST_RETRY_S)
        first_reason = reason if before is None else before.first_reason
        self._by_attempt[track, version, *events] = Refusal(first_reason, reason, now + delay_s, delay_s)

    def may_try(self, track: Track, version: int, events: tuple[str, str], now: float) -> bool:
        """Return True if the version was not refused, or long enough ago."""
        refusal = self._by_attempt.get((track, version, *events))
        return refusal is None or now >= refusal.retry_at

    def reason(self, track: Track, version: int, events: tuple[str, str]) -> str | None:
        """Return why the attempts failed; None: there was none."""
        refusal = self._by_attempt.get((track, version, *events))
        return None if refusal is None else refusal.reason
