"""Remember where records are that may belong to a person who is not known yet, so that few are read a second time.

A record that names nobody belongs to the person of its trajectory, and so do labels that are sealed for other persons.
The trajectory's steps may come later on the log, so its owners are known at the end only.
"""

from array import array
from collections.abc import Collection, Mapping, Sized

from stepstream.topics.catalogue import GOVERNED_STEPS, LABELED_TRAJECTORIES
from stepstream.topics.consumer import Event

_MOST = 4_000_000
"""Records that are remembered of each kind, 16 bytes each; beyond them, all of the rest is read again."""

Ranges = dict[tuple[str, int], tuple[int, int]]
"""First offset and end by (topic, partition)."""


class SecondReading:
    """Select what is read again."""

    def __init__(self, most: int = _MOST) -> None:
        self._foreign, self._labels, self._steps = _Records(most), _Records(most), _Records(most)

    def add(self, event: Event, found: bool, has_content: bool) -> None:
        """Take in a decoded record of the first reading.

        Args:
            event: the record.
            found: True if it was found to be some person's by its name or keys.
            has_content: True if it is unsealed and names nobody, and has content.
        """
        if event.topic == GOVERNED_STEPS:
            self._steps.add(event)
        if event.topic == LABELED_TRAJECTORIES and found:
            self._labels.add(event)
        elif not found and (has_content or event.topic == LABELED_TRAJECTORIES):
            self._foreign.add(event)

    def ranges(self, owners: Mapping[tuple[str, str], Sized]) -> Ranges:
        """Return where records that may be a person's are, given the persons by (tenant, id) of their trajectories.

        A label that is sealed for another person is the person's unless it holds steps of others only: so the governed
        steps of its trajectory are read too.
        """
        foreign, of_labels = self._foreign.find(owners.keys(), LABELED_TRAJECTORIES)
        shared = [trajectory for trajectory, persons in owners.items() if len(persons) > 1]
        labels, of_shared = self._labels.find(shared, LABELED_TRAJECTORIES)
        steps, _ = self._steps.find(of_labels | of_shared)
        found: Ranges = {}
        for ranges in (foreign, labels, steps):
            for place, (first, end) in ranges.items():
                known = found.get(place, (first, end))
                found[place] = min(first, known[0]), max(end, known[1])
        return found


class _Records:
    """Trajectories and offsets of records, by topic and partition."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._trajectories: dict[tuple[str, int], array[int]] = {}
        self._offsets: dict[tuple[str, int], array[int]] = {}
        self._rest: Ranges = {}
        """Where the records are that were not remembered."""

    def add(self, event: Event) -> None:
        """Remember a record."""
        place = event.topic, event.partition
        if not self._free:
            self._rest[place] = self._rest.get(place, (event.offset, 0))[0], event.offset + 1
            return
        self._free -= 1
        if place not in self._offsets:
            self._trajectories[place], self._offsets[place] = array("q"), array("q")
        self._trajectories[place].append(hash((event.record["tenant"], event.record["trajectory_id"])))
        self._offsets[place].append(event.offset)

    def find(
        self, trajectories: Collection[tuple[str, str]], topic: str | None = None
    ) -> tuple[Ranges, set[tuple[str, str]]]:
        """Return where records of some trajectories may be, and those of them that have some on `topic`.

        Two trajectories whose hashes collide cost time, and no error.
        """
        by_hash = {hash(trajectory): trajectory for trajectory in trajectories}
        ranges, having = dict(self._rest) if by_hash else {}, set()
        if any(place[0] == topic for place in ranges):
            having = set(trajectories)
        for place, hashes in self._trajectories.items() if by_hash else ():
            matches = [at for at, key in enumerate(hashes) if key in by_hash]
            if matches:
                offsets = self._offsets[place]
                first, end = offsets[matches[0]], offsets[matches[-1]] + 1
                ranges[place] = first, max(end, ranges.get(place, (0, 0))[1])
                if place[0] == topic:
                    having |= {by_hash[hashes[at]] for at in matches}
        return ranges, having
