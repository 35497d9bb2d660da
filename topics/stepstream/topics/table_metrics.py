"""Declare the metrics of followed tables, apart from them: agents serve no metrics."""

from prometheus_client import Gauge

FAULTY = Gauge(
    "stepstream_table_faulty", "1 while rows of a followed topic may be older than the topic; see the log.", ["topic"]
)
