"""The labelled topic as it stands, for the accounts."""

from stepstream.config import Settings
from stepstream.crypto.key_ring import codec_of
from stepstream.demo.accounting import Label
from stepstream.topics.consumer import EventConsumer

TOPIC = "labeled-trajectories"


class LabelReader:
    """Reads every record that came after it was made."""

    def __init__(self, settings: Settings) -> None:
        """Notes where the topic ends now."""
        self._kafka = settings.kafka
        self._codec = codec_of(settings)
        with EventConsumer(self._kafka, self._codec) as consumer:
            self._start = {(TOPIC, partition): offset for partition, offset in consumer.end_offsets(TOPIC).items()}

    def read(self) -> list[Label]:
        """Every record since then, redeliveries included; blocks until the end as of now is reached."""
        labels = []
        with EventConsumer(self._kafka, self._codec) as consumer:
            consumer.follow([TOPIC], self._start)
            while not consumer.caught_up():
                labels += [
                    Label(record["trajectory_id"], record["revision"], record["event_id"], len(record["steps"]))
                    for event in consumer.poll(1000, 1.0)
                    if (record := event.record) is not None
                ]
        return labels

    def close(self) -> None:
        """Frees the connections."""
        self._codec.close()
