"""Count in the Prometheus metrics of every job."""

from prometheus_client import REGISTRY

from stepstream.core.metrics import stream_jobs

READY = stream_jobs.READY.create()
RECORDS_IN = stream_jobs.RECORDS_IN.create()
RECORDS_OUT = stream_jobs.RECORDS_OUT.create()
DEAD_LETTERS = stream_jobs.DEAD_LETTERS.create()
REDELIVERED = stream_jobs.REDELIVERED.create()
DUPLICATES = stream_jobs.DUPLICATES.create()
SUPERSEDED = stream_jobs.SUPERSEDED.create()
LATE = stream_jobs.LATE_FEEDBACK.create()
WITHHELD = stream_jobs.WITHHELD.create()
LATE_ERASED = stream_jobs.LATE_ERASED.create()
REDACTIONS = stream_jobs.REDACTIONS.create()
JUDGED = stream_jobs.JUDGED.create()
VERIFIED = stream_jobs.VERIFIED.create()
FAILED_TICKS = stream_jobs.FAILED_TICKS.create()
REPLAYED = stream_jobs.REPLAYED.create()
HISTORY_LOST = stream_jobs.HISTORY_LOST.create()
SNAPSHOTS = stream_jobs.SNAPSHOTS.create()
SNAPSHOT_AGE = stream_jobs.SNAPSHOT_AGE.create()
STATE_ENTRIES = stream_jobs.STATE_ENTRIES.create()
STATE_ADDED = stream_jobs.STATE_ADDED.create()
STATE_REMOVED = stream_jobs.STATE_REMOVED.create()
LAG_SECONDS = stream_jobs.LAG_SECONDS.create()
LAG_OFFSETS = stream_jobs.LAG_OFFSETS.create()
BATCH_SECONDS = stream_jobs.BATCH_SECONDS.create()


def readiness_fault() -> str:
    """Return why the job is not ready; empty: it is."""
    if REGISTRY.get_sample_value(stream_jobs.READY.name):
        return ""
    return "no partitions are assigned yet, or their state is not recovered yet"
