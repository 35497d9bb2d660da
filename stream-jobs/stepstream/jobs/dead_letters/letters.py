"""Select dead letters from the log. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepstream.topics.events import DeadLetter


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Conditions on dead letters; an empty one holds for all."""

    ids: frozenset[str] = frozenset()
    tenant: str = ""
    topic: str = ""
    job: str = ""
    """Name, with or without the version."""
    error: str = ""
    reason: str = ""
    """Part of the reason."""

    def accepts(self, letter: DeadLetter) -> bool:
        """Return True if a letter meets every condition."""
        return (
            (not self.ids or letter["event_id"] in self.ids)
            and (not self.tenant or letter["tenant"] == self.tenant)
            and (not self.topic or letter["topic"] == self.topic)
            and (not self.job or self.job in (letter["job"], letter["job"].partition("@")[0]))
            and (not self.error or letter["error"] == self.error)
            and self.reason in letter["reason"]
        )


@dataclass
class Letters:
    """The dead letters of a log, without repetitions."""

    rejected: dict[str, DeadLetter] = field(default_factory=dict)
    """By id, oldest first."""
    redriven: set[str] = field(default_factory=set)
    """Ids of letters whose record was sent again."""

    def add(self, records: Iterable[DeadLetter]) -> None:
        """Add records of the topic, in any order."""
        for record in records:
            if record["redrives"] is None:
                self.rejected.setdefault(record["event_id"], record)
            else:
                self.redriven.add(record["redrives"])

    def select(self, accepted: LetterFilter, *, with_redriven: bool = False) -> list[DeadLetter]:
        """Return the letters that a filter accepts, oldest first; those that were redriven only on request."""
        found = [
            letter
            for letter in self.rejected.values()
            if accepted.accepts(letter) and (with_redriven or letter["event_id"] not in self.redriven)
        ]
        return sorted(found, key=lambda letter: (letter["occurred_at_us"], letter["event_id"]))
