"""Define the store's Prometheus metrics."""

from prometheus_client import Counter, Gauge, Histogram

QUERIES = Counter("stepstream_store_queries_total", "Requests with a statement.", ["kind", "outcome"])
SECONDS = Histogram(
    "stepstream_store_query_seconds",
    "Seconds until a statement's reply began.",
    ["kind"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
ROWS = Counter("stepstream_store_inserted_rows_total", "Rows acknowledged.")
RUNNING = Gauge("stepstream_store_running", "Statements in progress.")
SESSIONS = Gauge("stepstream_store_sessions", "Open sessions.")
