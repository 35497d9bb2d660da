"""The events that Kafka's client has and Kafka has not acknowledged, in the order in which they were sent."""

from collections import deque

from stepstream.topics.segment import Record
from stepstream.topics.spool import Place

WINDOW_EVENTS = 20_000
WINDOW_BYTES = 32 * 1024 * 1024
IN_FLIGHT, DONE, FAILED = range(3)


class Sent:
    """An event that Kafka's client has; `record` only where the disk has it not."""

    __slots__ = ("key", "place", "record", "size", "state")

    def __init__(self, key: str, record: Record | None, place: Place | None, size: int) -> None:
        self.key = key
        self.record = record
        self.place = place
        self.size = size
        self.state = IN_FLIGHT


class Window:
    """Its owner's lock guards it; the state of what is in it may change at any time."""

    def __init__(self) -> None:
        self._sent: deque[Sent] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sent)

    def has_room(self, size: int) -> bool:
        """Whether one more event of so many bytes may be sent."""
        return len(self._sent) < WINDOW_EVENTS and self._bytes + size <= max(WINDOW_BYTES, size)

    def add(self, sent: Sent) -> None:
        """Takes in the event that was sent last."""
        self._sent.append(sent)
        self._bytes += sent.size

    def settle(self) -> Place | None:
        """Lets go what has been acknowledged and has nothing unacknowledged before it; the last place among it."""
        place = None
        while self._sent and self._sent[0].state == DONE:
            sent = self._sent.popleft()
            self._bytes -= sent.size
            place = sent.place or place
        return place

    def is_answered(self) -> bool:
        """Whether Kafka has said of every event what became of it."""
        return all(sent.state != IN_FLIGHT for sent in self._sent)

    def undelivered(self) -> list[Place | None]:
        """Where the events are kept that have not arrived; None for one in memory."""
        return [sent.place for sent in self._sent if sent.state != DONE]

    def again(self) -> list[tuple[Record | None, Place | None]]:
        """What must be sent again for the sake of order: everything on disk, and of those in memory each from the
        first of its key on that failed. What arrives twice has the same id.
        """
        broken: set[str] = set()
        found = []
        for sent in self._sent:
            if sent.state == FAILED:
                broken.add(sent.key)
            if sent.place is not None or sent.key in broken:
                found.append((sent.record, sent.place))
        return found

    def clear(self) -> None:
        """Forgets all of them."""
        self._sent.clear()
        self._bytes = 0
