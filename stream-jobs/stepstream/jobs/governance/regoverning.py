"""Governs history anew, as the `govern` job would govern it now: the same fold over the same records.

What comes out has the ids that the job would give under the tenant's present policy, so that what it governed under
that version already is recognised and left out, and a second replay gives nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.fold import GovernFold, Governors
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record, Refused
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.topics.events import Governance

INTO: dict[str, str] = {
    "steps": "governed-steps",
    "feedback": "governed-feedback",
    "governed-steps": "governed-steps",
    "governed-feedback": "governed-feedback",
}
"""What may be read, and where its results go."""
_RAW = {"governed-steps": "steps", "governed-feedback": "feedback"}
_DEDUP_DAYS = 36_500
_MAX_FUTURE_S = 1e9
"""What was governed once was not from the future."""


@dataclass
class Tally:
    """What became of the records that were read."""

    read: int = 0
    governed: int = 0
    """Given anew."""
    known: int = 0
    """Governed under this version before."""
    withheld: int = 0
    """Without consent now, or of somebody who was erased."""
    refused: int = 0
    """Never were governed: they are among the dead letters."""
    superseded: int = 0
    """Older results for a source, or copies of a record."""
    trainable: int = 0
    """Of those given anew, the ones that may be trained on."""
    rules: Counter[str] = field(default_factory=Counter)
    """Redactions in those given anew."""


@dataclass
class Known:
    """What is on the governed topic: which results are there, and which of each source is the newest."""

    results: set[str] = field(default_factory=set)
    newest: dict[str, tuple[int, str]] = field(default_factory=dict)
    persons: dict[str, str] = field(default_factory=dict)
    """Whom feedback is about, by its source, as `govern` found by its trajectory where it names nobody itself."""

    def note(self, event: Any) -> None:
        """Takes in a governed event."""
        self.results.add(event["event_id"])
        governed = event["governed"]
        if governed is not None:
            entry = (governed["policy_version"], event["event_id"])
            source = governed["source_event_id"]
            self.newest[source] = max(self.newest.get(source, entry), entry)
            if "comment" in event and event["user"] is not None:
                self.persons[source] = event["user"]


class Regovern:
    """One partition of a stretch of history. No Kafka; state is in memory."""

    def __init__(self, governors: Governors, known: Known, tally: Tally, now_us: int, context_days: int) -> None:
        """`context_days` is how far `govern` itself looks back for a step's context."""
        self._known, self._tally = known, tally
        self._fold = GovernFold(
            governors,
            dedup_days=_DEDUP_DAYS,
            max_future_s=_MAX_FUTURE_S,
            now_us=lambda: now_us,
            context_days=context_days,
        )
        self._changes = Changes(cast(PartitionState, _Nothing()))

    def take(self, record: Record, event: dict[str, Any], *, count: bool) -> list[tuple[str, str, Any]]:
        """What one record gives, as (topic, key, event); `count` is false for those before the stretch.

        Those before it are taken all the same: whether the context of a step is clean depends on them.
        """
        into, before = INTO[record.topic], None
        if record.topic in _RAW:
            before = cast(Governance, event["governed"])
            source = before["source_event_id"]
            if self._known.newest.get(source, (0, ""))[1] != event["event_id"]:
                self._tally.read += count
                self._tally.superseded += count
                return []
            topic = _RAW[record.topic]
            event = event | {"event_id": source, "governed": None}
            record = Record(topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value)
        elif record.topic == "feedback" and event["user"] is None:
            event = event | {"user": self._known.persons.get(event["event_id"])}
        sink = _Sink()
        erased = is_erased(event)
        try:
            self._fold.apply(record, event, self._changes, sink)
            refused = False
        except Refused:
            refused = True
        if not count:
            return []
        self._tally.read += 1
        self._tally.refused += refused
        results = [one for one in sink.given if one[0] == into]
        if not results:
            withheld = any(topic == "governance-audit" and e["action"] == "withheld" for topic, _, e in sink.given)
            self._tally.withheld += withheld or erased
            self._tally.superseded += not (withheld or erased or refused)
            return []
        [(_, _, result)] = results
        if result["event_id"] in self._known.results:
            self._tally.known += 1
            return []
        if before is not None:
            _keep(before, result["governed"])
        self._tally.governed += 1
        self._tally.trainable += result["governed"]["trainable"]
        self._tally.rules.update(result["governed"]["redactions"])
        return sink.given


def _keep(before: Governance, now: Governance) -> None:
    """What was found the first time still holds: the text that comes in has lost it already."""
    now["trainable"] = now["trainable"] and before["trainable"]
    now["flags"] = sorted({*before["flags"], *now["flags"]})
    now["redactions"] = dict(Counter(before["redactions"]) + Counter(now["redactions"]))


class _Nothing:
    """A store in which nothing is stored: all there is stands in the changes."""

    def get(self, key: bytes) -> None:
        """Nothing."""


class _Sink(Outputs):
    """Keeps events as they are."""

    def __init__(self) -> None:
        self.silent = False
        self.given: list[tuple[str, str, Any]] = []

    def emit(self, topic: str, key: str, record: Any) -> None:
        """Keeps it."""
        self.given.append((topic, key, record))

    def count(self, counter: Any, by: int = 1) -> None:
        """Nothing: the tally counts."""


def stretches_between(
    begin: Mapping[tuple[str, int], tuple[int, int]], end: Mapping[tuple[str, int], tuple[int, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Offsets from the beginning of one set of stretches to the beginning of another."""
    return {place: (low, max(low, end[place][0])) for place, (low, _) in begin.items()}


def total(stretches: Iterable[tuple[int, int]]) -> int:
    """Offsets in stretches."""
    return sum(end - begin for begin, end in stretches)
