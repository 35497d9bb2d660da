"""Read the labels that a run produced from the labelled topic."""

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.demo.accounting import Label
from stepstream.topics.catalogue import LABELED_TRAJECTORIES
from stepstream.topics.consumer import EventConsumer


class LabelReader:
    """Reads the records that follow the topic's end at construction."""

    def __init__(self, settings: Settings) -> None:
        """Record the topic's current end."""
        self._kafka = settings.kafka
        self._codec = sealing_codec(settings)
        with EventConsumer(self._kafka, self._codec) as consumer:
            self._start = {
                (LABELED_TRAJECTORIES, partition): offset
                for partition, offset in consumer.end_offsets(LABELED_TRAJECTORIES).items()
            }

    def read(self) -> list[Label]:
        """Return the records since then, including redeliveries; blocks until it reaches the topic's current end."""
        labels = []
        with EventConsumer(self._kafka, self._codec) as consumer:
            consumer.follow([LABELED_TRAJECTORIES], self._start)
            while not consumer.is_caught_up():
                labels += [
                    Label(record["trajectory_id"], record["revision"], record["event_id"], len(record["steps"]))
                    for event in consumer.poll(1000, 1.0)
                    if (record := event.record) is not None
                ]
        return labels

    def close(self) -> None:
        """Close the registry connection."""
        self._codec.close()
