"""Declare the Prometheus metrics of every job."""

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

READY = Gauge("stepstream_job_ready", "1 when partitions are assigned and their state is recovered.")
RECORDS_IN = Counter("stepstream_job_records_in", "Records read, redelivered ones included.", ["topic"])
RECORDS_OUT = Counter("stepstream_job_records_out", "Records published.", ["topic"])
DEAD_LETTERS = Counter("stepstream_job_dead_letters", "Invalid records.", ["topic", "error"])
REDELIVERED = Counter("stepstream_job_redelivered", "Records at offsets that were already folded.", ["topic"])
DUPLICATES = Counter("stepstream_job_duplicates", "Events already folded from another offset.", ["topic"])
SUPERSEDED = Counter(
    "stepstream_job_superseded", "Events replaced by another event of the same step.", ["topic", "why"]
)
LATE = Counter("stepstream_label_late_feedback", "Feedback received after its components were final.", ["name"])
WITHHELD = Counter("stepstream_job_withheld", "Records withheld for lack of consent or for an erasure.", ["topic"])
LATE_ERASED = Counter(
    "stepstream_job_late_erased", "Records received after the erasure of their person: erase them again.", ["topic"]
)
REDACTIONS = Counter("stepstream_job_redactions", "Values redacted.", ["rule"])
JUDGED = Counter("stepstream_job_judged", "Steps that a user's next message could score.", ["result"])
VERIFIED = Counter("stepstream_job_verified", "Cases that verifiers processed.", ["verification", "result"])
FAILED_TICKS = Counter("stepstream_job_failed_ticks", "Ticks at which a fold raised; they are tried again.")
REPLAYED = Counter("stepstream_job_replayed", "Records folded without publishing, to rebuild state.", ["topic"])
HISTORY_LOST = Counter(
    "stepstream_job_history_lost",
    "Offsets that the log deleted before the state had them, and that were accepted.",
    ["topic"],
)
SNAPSHOTS = Counter(
    "stepstream_job_snapshots", "Snapshots of state: `written`, `restored`, `refused` or `failed`.", ["result"]
)
SNAPSHOT_AGE = Gauge(
    "stepstream_job_snapshot_age_seconds", "Longest time for which a partition's changes are in no snapshot."
)
STATE_ADDED = Counter("stepstream_job_state_added", "Entries added to the saved state.", ["kind"])
STATE_REMOVED = Counter(
    "stepstream_job_state_removed", "Entries removed from the saved state, by age or by the cap.", ["kind", "why"]
)
LAG_SECONDS = Gauge("stepstream_job_lag_seconds", "Age of the newest record of the last batch at its end.")
BATCH_SECONDS = Histogram("stepstream_job_batch_seconds", "Time to process one batch.", buckets=_SECONDS)


def readiness_fault() -> str:
    """Return why the job is not ready; empty: it is."""
    if REGISTRY.get_sample_value("stepstream_job_ready"):
        return ""
    return "no partitions are assigned yet, or their state is not recovered yet"
