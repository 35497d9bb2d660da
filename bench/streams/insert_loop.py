"""Insert the rows of topics by plain loops, the maximum rates of one client of ClickHouse."""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from clickhouse_connect.driver.client import Client
from confluent_kafka import Consumer, KafkaError, TopicPartition

from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec

RowsByTable = dict[str, list[Any]]


def plain_rate(settings: Settings, codec: Codec, topics: tuple[str, ...]) -> float:
    """Return the rows per second of a loop that consumes batches, decodes them, builds their rows and inserts these."""
    client = connect(settings, database=settings.clickhouse.database)
    began, count = time.monotonic(), 0
    for topic in topics:
        for values in batches(settings, topic):
            by_table = rows_of(codec, topic, values)
            insert(client, by_table, settings.store.batch_rows)
            count += sum(map(len, by_table.values()))
    seconds = time.monotonic() - began
    client.close()
    return count / seconds


def insert_rate(settings: Settings, codec: Codec, topics: tuple[str, ...]) -> tuple[float, int]:
    """Return the rows per second of a loop that inserts rows built before, and the number of rows of the topics."""
    by_table: RowsByTable = defaultdict(list)
    for topic in topics:
        for values in batches(settings, topic):
            for table, some in rows_of(codec, topic, values).items():
                by_table[table] += some
    client = connect(settings, database=settings.clickhouse.database)
    began = time.monotonic()
    insert(client, by_table, settings.store.batch_rows)
    seconds = time.monotonic() - began
    client.close()
    count = sum(map(len, by_table.values()))
    return count / seconds, count


def rows_of(codec: Codec, topic: str, values: list[bytes]) -> RowsByTable:
    """Decode values and return their rows."""
    by_table: RowsByTable = defaultdict(list)
    for value in values:
        for table, row in rows(topic, codec.decode(topic, value)):
            by_table[table].append(row)
    return by_table


def insert(client: Client, by_table: RowsByTable, size: int) -> None:
    """Insert rows, at most `size` at a time."""
    for table, all_rows in by_table.items():
        for start in range(0, len(all_rows), size):
            client.insert(table, all_rows[start : start + size], column_names=TABLES[table].columns)


def batches(settings: Settings, topic: str) -> Iterator[list[bytes]]:
    """Yield the values of a topic, up to `store.batch_rows` at a time."""
    config = {"group.id": "bench-rows", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(client_config(settings.kafka) | config)
    try:
        unread = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
        while unread:
            values = []
            for message in consumer.consume(settings.store.batch_rows, 0.1):
                fault, value = message.error(), message.value()
                if fault is None and value is not None:
                    values.append(value)
                elif fault is not None and fault.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition() or 0)
            if values:
                yield values
    finally:
        consumer.close()
