"""Count in the store's Prometheus metrics."""

from stepstream.core.metrics import services

QUERIES = services.STORE_QUERIES.create()
SECONDS = services.STORE_QUERY_SECONDS.create()
ROWS = services.STORE_ROWS.create()
RUNNING = services.STORE_RUNNING.create()
SESSIONS = services.STORE_SESSIONS.create()
