"""Read topics without a group: whole, from an offset on, or selected offsets."""

from collections.abc import Iterator, Sequence

from stepstream.config import Settings
from stepstream.jobs.erasure.selection import Place, Ranges, Selection
from stepstream.topics.catalogue import FEEDBACK, GOVERNED_FEEDBACK, GOVERNED_STEPS, LABELED_TRAJECTORIES, STEPS
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event, EventConsumer

INTAKE = (STEPS, FEEDBACK)
GOVERNED = (GOVERNED_STEPS, GOVERNED_FEEDBACK, LABELED_TRAJECTORIES)
"""Labels are last: the search needs the owners of their steps."""
INDEXED = (*INTAKE, *GOVERNED)
_BATCH = 2000
_LITTLE_AT_A_TIME = {"fetch.message.max.bytes": 65_536, "queued.min.messages": 1}
"""For a few records here and there: the client fetches megabytes ahead by default."""


def read_events(settings: Settings, codec: Codec, topic: str) -> Iterator[Event]:
    """Yield the events of a topic up to its present end."""
    with EventConsumer(settings.kafka, codec) as consumer:
        consumer.follow([topic])
        while not consumer.is_caught_up():
            yield from consumer.poll(_BATCH, 0.2)


class Log:
    """The topics that a search reads. Sealed records stay sealed: the ids of their keys identify their owners."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.codec = Codec(settings, keep_arrays=True)

    def close(self) -> None:
        """Free the connections."""
        self.codec.close()

    def offset_ranges(self, topics: Sequence[str]) -> Ranges:
        """Return the first offset and the end of each partition."""
        with EventConsumer(self._settings.kafka, self.codec) as consumer:
            return {place: bounds for topic in topics for place, bounds in consumer.offset_ranges(topic).items()}

    def read(self, topic: str) -> Iterator[Event]:
        """Yield the events of a topic up to its present end."""
        return read_events(self._settings, self.codec, topic)

    def read_ranges(self, ranges: Ranges) -> Iterator[tuple[list[Event], dict[Place, int]]]:
        """Yield batches of all events in a range of each partition, with the offsets that the partitions have reached.

        The last batches may go beyond the ranges.
        """
        ranges = {place: (first, end) for place, (first, end) in ranges.items() if first < end}
        if not ranges:
            return
        with EventConsumer(self._settings.kafka, self.codec) as consumer:
            _follow(consumer, ranges)
            while not consumer.is_caught_up():
                events = consumer.poll(_BATCH, 0.2)
                yield events, {place: consumer.position(*place) for place in ranges}

    def read_selected(self, topic: str, selection: Selection) -> Iterator[Event]:
        """Yield the selected events of a topic that are still there."""
        runs = list(selection.runs(topic))
        if not runs:
            return
        config = _LITTLE_AT_A_TIME if len(runs) > 1 else {}
        with EventConsumer(self._settings.kafka, self.codec, wanted=selection.contains, config=config) as consumer:
            for run in runs:
                _follow(consumer, run)
                while not consumer.is_caught_up():
                    for event in consumer.poll(_BATCH, 0.2):
                        if event.offset < run[event.topic, event.partition][1]:
                            yield event


def _follow(consumer: EventConsumer, ranges: Ranges) -> None:
    topics = dict.fromkeys(topic for topic, _ in ranges)
    starts = {place: first for place, (first, _) in ranges.items()}
    consumer.follow(topics, starts, {place: end for place, (_, end) in ranges.items()})
