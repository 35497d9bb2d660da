"""Count in the metrics of followed tables, apart from them: agents serve no metrics."""

from stepstream.core.metrics import services

FAULTY = services.TABLE_FAULTY.create()
