"""Run a plain consume-decode-encode-produce loop, the maximum rate of one Python process.

`plain_loop.py rate TOPIC RECORDS` prints its records per second. `plain_loop.py forward` prints `ready`, then forwards
each step at once until it is terminated.
"""

import sys
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition

from stepstream.config import load
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.ids import new_event_id

LOOP_TOPIC = "bench-loop"


def run_loop(topic: str, records: int) -> None:
    """Process `records` records of a topic; print the records per second."""
    settings = load()
    codec = Codec(settings)
    consumer = Consumer(
        client_config(settings.kafka)
        | {"group.id": new_event_id(), "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    producer = Producer(
        client_config(settings.kafka)
        | {"enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4", "partitioner": "murmur2_random"}
    )
    consumer.subscribe([topic])
    done = 0
    began, first = 0.0, 0
    while done < records:
        for message in consumer.consume(500, 0.1):
            if message.error() is None:
                value = codec.encode(topic, codec.decode(topic, message.value()))
                while True:
                    try:
                        producer.produce(LOOP_TOPIC, value, message.key())
                        break
                    except BufferError:
                        producer.poll(0.1)
                done += 1
        producer.poll(0)
        if done and not began:
            began, first = time.monotonic(), done
    producer.flush()
    consumer.commit(asynchronous=False)
    print((done - first) / (time.monotonic() - began))
    consumer.close()


def run_forward() -> None:
    """Forward each step of `steps` at once, for latency."""
    settings = load()
    codec = Codec(settings)
    consumer = Consumer(
        client_config(settings.kafka)
        | {"group.id": new_event_id(), "auto.offset.reset": "latest", "fetch.wait.max.ms": 5}
    )
    producer = Producer(client_config(settings.kafka) | {"enable.idempotence": True, "linger.ms": 0})
    consumer.subscribe(["steps"], on_assign=from_now(lambda: print("ready", flush=True)))
    while True:
        for message in consumer.consume(500, 0.001):
            if message.error() is None:
                value = codec.encode("governed-steps", codec.decode("steps", message.value()))
                producer.produce(LOOP_TOPIC, value, message.key())
        producer.poll(0)


def from_now(then: Callable[[], object]) -> Callable[[Consumer, list[TopicPartition]], None]:
    """Return an `on_assign` callback that starts at the current ends of the partitions, then calls `then`."""

    def assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = consumer.get_watermark_offsets(partition, timeout=10)[1]
        consumer.assign(partitions)
        then()

    return assign


if __name__ == "__main__":
    if sys.argv[1] == "rate":
        run_loop(sys.argv[2], int(sys.argv[3]))
    else:
        run_forward()
