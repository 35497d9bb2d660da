"""Kafka's brokers are read in every form that librdkafka accepts."""

import pytest

from stepstream.config import KafkaSettings


@pytest.mark.parametrize(
    ("bootstrap", "brokers"),
    [
        ("127.0.0.1:9092", ["127.0.0.1:9092"]),
        ("kafka", ["kafka:9092"]),
        ("a:9093,b", ["a:9093", "b:9092"]),
        ("a:9093, b:9094 c", ["a:9093", "b:9094", "c:9092"]),
        ("[::1]:19092,[fe80::1]", ["[::1]:19092", "[fe80::1]:9092"]),
        ("SASL_SSL://kafka.internal:9093, PLAINTEXT://other", ["kafka.internal:9093", "other:9092"]),
        ("SSL://[::1]", ["[::1]:9092"]),
        ("a,,b,", ["a:9092", "b:9092"]),
    ],
)
def test_brokers_are_read_as_librdkafka_reads_them(bootstrap: str, brokers: list[str]) -> None:
    assert KafkaSettings(bootstrap=bootstrap).brokers == brokers
