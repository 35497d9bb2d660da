"""Publishes the outputs of a batch and returns when the brokers have acknowledged all of them."""

from collections import Counter
from collections.abc import Callable, Sequence

from stepstream.config import Settings
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Output
from stepstream.jobs.runtime.waiting import Abandoned
from stepstream.topics.codec import Codec
from stepstream.topics.producer import EventProducer

_POLL_S = 0.5


class Publisher:
    """One producer of a job. Use from one thread."""

    def __init__(self, settings: Settings, codec: Codec, source: str, abandoned: Callable[[], bool]) -> None:
        self._abandoned = abandoned
        self._producer = EventProducer(settings.kafka, codec, source, linger_ms=0.0)

    def publish(self, outputs: Sequence[Output]) -> None:
        """Blocks until all of them are durable; a broker that is away is waited for.

        Raises:
            Abandoned: asked to give up while waiting; some of them may be published later all the same.
            DeliveryFailed: Kafka refused some for good.
        """
        for output in outputs:
            envelope = {"event_id": output.event_id, "occurred_at_us": output.occurred_at_us}
            while True:
                try:
                    self._producer.send_encoded(output.topic, output.key, output.value, envelope)
                    break
                except BufferError:
                    self._wait()
        while len(self._producer):
            self._wait()
        self._producer.flush()
        for topic, records in Counter(output.topic for output in outputs).items():
            metrics.RECORDS_OUT.labels(topic).inc(records)

    def _wait(self) -> None:
        if not self._producer.poll(_POLL_S) and self._abandoned():
            raise Abandoned
