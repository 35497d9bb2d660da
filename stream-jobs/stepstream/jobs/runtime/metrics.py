"""What every job shows to Prometheus, as typed names."""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

READY = Gauge("stepstream_job_ready", "1 when partitions are assigned and their state is recovered.")
RECORDS_IN = Counter("stepstream_job_records_in", "Records taken, redelivered ones included.", ["topic"])
RECORDS_OUT = Counter("stepstream_job_records_out", "Records published.", ["topic"])
DEAD_LETTERS = Counter("stepstream_job_dead_letters", "Records that could not be used.", ["topic", "error"])
REDELIVERED = Counter("stepstream_job_redelivered", "Records at offsets that were folded already.", ["topic"])
DUPLICATES = Counter("stepstream_job_duplicates", "Events seen before under another offset.", ["topic"])
SUPERSEDED = Counter(
    "stepstream_job_superseded", "Events in whose place another of the same step counts.", ["topic", "why"]
)
LATE = Counter("stepstream_label_late_feedback", "Feedback that came after its components were final.", ["name"])
WITHHELD = Counter("stepstream_job_withheld", "Records without consent, whose content was not passed on.", ["topic"])
LATE_ERASED = Counter(
    "stepstream_job_late_erased", "Records that came after the erasure of their person: erase them again.", ["topic"]
)
REDACTIONS = Counter("stepstream_job_redactions", "Passages redacted.", ["rule"])
JUDGED = Counter("stepstream_job_judged", "Steps that a user's next message could score.", ["result"])
VERIFIED = Counter("stepstream_job_verified", "Cases that verifiers looked at.", ["verification", "result"])
REPLAYED = Counter("stepstream_job_replayed", "Records folded silently to rebuild state.", ["topic"])
LAG_SECONDS = Gauge("stepstream_job_lag_seconds", "Age of the newest record of the last batch when it was done.")
BATCH_SECONDS = Histogram("stepstream_job_batch_seconds", "Time to work off one batch.", buckets=_SECONDS)
