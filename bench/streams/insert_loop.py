"""Insert the rows of topics by a plain loop, the maximum rate of one client of ClickHouse."""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec


def insert_rate(settings: Settings, codec: Codec, topics: tuple[str, ...]) -> tuple[float, int]:
    """Return the rows per second of a loop that only inserts, and the number of rows of the topics."""
    by_table: defaultdict[str, list[Any]] = defaultdict(list)
    for topic in topics:
        for value in values_of(settings, topic):
            for table, row in rows(topic, codec.decode(topic, value)):
                by_table[table].append(row)
    client = connect(settings.clickhouse, database=settings.clickhouse.database)
    size = settings.store.batch_rows
    began = time.monotonic()
    for table, all_rows in by_table.items():
        for start in range(0, len(all_rows), size):
            client.insert(table, all_rows[start : start + size], column_names=TABLES[table].columns)
    seconds = time.monotonic() - began
    client.close()
    count = sum(map(len, by_table.values()))
    return count / seconds, count


def values_of(settings: Settings, topic: str) -> Iterator[bytes]:
    """Yield the value of each record of a topic."""
    config = {"group.id": "bench-rows", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(client_config(settings.kafka) | config)
    try:
        unread = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
        while unread:
            for message in consumer.consume(5_000, 0.1):
                fault, value = message.error(), message.value()
                if fault is None and value is not None:
                    yield value
                elif fault is not None and fault.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition() or 0)
    finally:
        consumer.close()
