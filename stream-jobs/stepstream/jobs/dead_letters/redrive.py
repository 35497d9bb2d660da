"""Read dead letters, and send their records again: the same bytes, key and headers, to the same partition.

The record keeps its `event_id`, so it takes effect once: a job that had accepted it, or gets it twice because the
command was interrupted, ignores the copy. A second dead letter then names the first (`redrives`), so the next redrive
skips it.
"""

import hashlib
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from stepstream.config import Settings
from stepstream.jobs.dead_letters.letters import Letters
from stepstream.topics.catalogue import DEAD_LETTERS, TOPICS
from stepstream.topics.client import consumer, producer
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import DeadLetter
from stepstream.topics.ids import derived_id, now_us
from stepstream.topics.producer import DeliveryFailed, EventProducer

_BATCH = 1_000
_POLL_S = 0.2
_CALL_S = 20.0
_FLUSH_S = 60.0
ORIGIN_HEADER = "stepstream-redrives"
"""Header of a record that was sent again: the id of its dead letter."""


class CannotRedrive(Exception):
    """The record of a letter cannot be sent again; the message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """Result of one letter."""

    letter: DeadLetter
    fault: str | None
    """Reason why its record was not sent; None: it was sent."""


def read_letters(settings: Settings) -> Letters:
    """Read `dead-letters` up to its present end.

    Raises:
        KafkaException: the topic does not exist, or no broker answers.
    """
    letters = Letters()
    with closing(Codec(settings)) as codec, EventConsumer(settings.kafka, codec) as events:
        events.follow([DEAD_LETTERS])
        while not events.is_caught_up():
            # Each record fits the topic's schema, or is no letter.
            letters.add(event.record for event in events.poll(_BATCH, _POLL_S) if event.record is not None)
    return letters


def redrive(settings: Settings, letters: Iterable[DeadLetter], *, dry_run: bool) -> list[Redriven]:
    """Send the records of letters again, in the order given; return when all are durable. After an interruption repeat.

    Args:
        settings: addresses of Kafka and the registry.
        letters: letters to redrive.
        dry_run: only check that the records can be read.

    Raises:
        KafkaException: no broker answers.
        DeliveryFailed: Kafka rejected a record.
    """
    sent: list[DeadLetter] = []
    results = []
    with _RawLog(settings) as raw:
        for letter in letters:
            try:
                message = raw.read(letter)
            except CannotRedrive as fault:
                results.append(Redriven(letter, str(fault)))
                continue
            if not dry_run:
                raw.send(letter, message)
            sent.append(letter)
            results.append(Redriven(letter, None))
        raw.flush()
    if not dry_run and sent:
        _mark(settings, sent)
    return results


def _mark(settings: Settings, sent: Iterable[DeadLetter]) -> None:
    """Write to the log that the records of letters were sent again."""
    with closing(Codec(settings)) as codec:
        marks = EventProducer(settings.kafka, codec, "redrive")
        for letter in sent:
            done: DeadLetter = {
                **letter,
                "event_id": derived_id("redrive@1", letter["event_id"]),
                "occurred_at_us": now_us(),
                "job": "redrive@1",
                "value": None,
                "redrives": letter["event_id"],
            }
            marks.send(DEAD_LETTERS, (letter["key"] or b"").decode(errors="replace"), done)
            marks.poll(0)
        marks.flush(_FLUSH_S)


class _RawLog:
    """Reads single records by position, and writes copies of them."""

    def __init__(self, settings: Settings) -> None:
        self._failures: list[str] = []
        self._consumer = consumer(
            settings.kafka, {"group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "error"}
        )
        self._producer = producer(
            settings.kafka,
            {
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": "lz4",
                "message.max.bytes": max(topic.max_message_bytes for topic in TOPICS.values()),
            },
        )

    def __enter__(self) -> "_RawLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, letter: DeadLetter) -> Message:
        """Return the record of a letter.

        Raises:
            CannotRedrive: it never reached its topic, is gone, or must not be sent again.
        """
        topic, partition, offset = letter["topic"], letter["partition"], letter["offset"]
        if partition < 0 or offset < 0:
            raise CannotRedrive("Kafka refused the record, so no topic has it: send it again from its producer")
        if topic not in TOPICS or TOPICS[topic].is_compacted:
            raise CannotRedrive(f"{topic} keeps the newest record of a key: write the key again instead")
        at = TopicPartition(topic, partition, offset)
        low, high = self._consumer.get_watermark_offsets(at, timeout=_CALL_S)
        if not low <= offset < high:
            raise CannotRedrive(f"{topic}[{partition}]@{offset} is gone: the topic begins at offset {low}")
        self._consumer.assign([at])
        for message in self._consumer.consume(1, _CALL_S):
            fault = message.error()
            if fault is not None:
                raise KafkaException(fault)
            digest = hashlib.sha256(message.value() or b"").hexdigest()
            if message.offset() != offset or letter["value_sha256"] not in (None, digest):
                raise CannotRedrive(f"{topic}[{partition}]@{offset} is another record: was the topic created again?")
            return message
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic}[{partition}]@{offset} was not read"))

    def send(self, letter: DeadLetter, message: Message) -> None:
        """Queue a copy of a record, on its partition."""
        headers = [*(message.headers() or []), (ORIGIN_HEADER, letter["event_id"].encode())]
        self._producer.produce(
            letter["topic"],
            value=message.value(),
            key=message.key(),
            partition=letter["partition"],
            headers=headers,
            on_delivery=self._note_failure,
        )
        self._producer.poll(0)

    def flush(self) -> None:
        """Block until every copy is durable.

        Raises:
            DeliveryFailed: Kafka rejected one, or did not answer in time.
        """
        if self._producer.flush(_FLUSH_S) or self._failures:
            raise DeliveryFailed(f"records were not sent again: {self._failures[:1] or 'Kafka does not answer'}")

    def _note_failure(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error.str())
