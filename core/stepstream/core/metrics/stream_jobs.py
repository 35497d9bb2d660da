"""Define the metrics of the stream jobs."""

from stepstream.core.metrics.definition import CounterMetric, GaugeMetric, HistogramMetric

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

READY = GaugeMetric("stepstream_job_ready", "0 or 1", "1 when partitions are assigned and their state is recovered.")
RECORDS_IN = CounterMetric(
    "stepstream_job_records_in_total", "records", "Records read, redelivered ones included.", ("topic",)
)
RECORDS_OUT = CounterMetric("stepstream_job_records_out_total", "records", "Records published.", ("topic",))
DEAD_LETTERS = CounterMetric(
    "stepstream_job_dead_letters_total", "records", "Invalid records, by class of error.", ("topic", "error")
)
REDELIVERED = CounterMetric(
    "stepstream_job_redelivered_total", "records", "Records at offsets that were already folded.", ("topic",)
)
DUPLICATES = CounterMetric(
    "stepstream_job_duplicates_total", "events", "Events already folded from another offset.", ("topic",)
)
SUPERSEDED = CounterMetric(
    "stepstream_job_superseded_total", "events", "Events replaced by another event of the same step.", ("topic", "why")
)
LATE_FEEDBACK = CounterMetric(
    "stepstream_label_late_feedback_total",
    "events",
    "Feedback received after its components were final.",
    ("name",),
)
WITHHELD = CounterMetric(
    "stepstream_job_withheld_total", "records", "Records withheld for lack of consent or for an erasure.", ("topic",)
)
LATE_ERASED = CounterMetric(
    "stepstream_job_late_erased_total",
    "records",
    "Records received after the erasure of their person: erase them again.",
    ("topic",),
)
REDACTIONS = CounterMetric("stepstream_job_redactions_total", "values", "Values redacted.", ("rule",))
JUDGED = CounterMetric(
    "stepstream_job_judged_total", "steps", "Steps that a user's next message could score.", ("result",)
)
VERIFIED = CounterMetric(
    "stepstream_job_verified_total", "cases", "Cases that verifiers processed.", ("verification", "result")
)
FAILED_TICKS = CounterMetric(
    "stepstream_job_failed_ticks_total", "ticks", "Ticks at which a fold raised; they are tried again."
)
REPLAYED = CounterMetric(
    "stepstream_job_replayed_total", "records", "Records folded without publishing, to rebuild state.", ("topic",)
)
HISTORY_LOST = CounterMetric(
    "stepstream_job_history_lost_total",
    "offsets",
    "Offsets that the log deleted before the state had them, and that were accepted.",
    ("topic",),
)
SNAPSHOTS = CounterMetric(
    "stepstream_job_snapshots_total",
    "snapshots",
    "Snapshots of state: `written`, `restored`, `refused` or `failed`.",
    ("result",),
)
SNAPSHOT_AGE = GaugeMetric(
    "stepstream_job_snapshot_age_seconds",
    "seconds",
    "Longest time for which a partition's changes are in no snapshot.",
)
STATE_ENTRIES = GaugeMetric(
    "stepstream_job_state_entries",
    "entries",
    "Estimated keys in the saved state of the assigned partitions. Deleted ones count until RocksDB compacts them.",
)
STATE_ADDED = CounterMetric(
    "stepstream_job_state_added_total", "entries", "Entries added to the saved state.", ("kind",)
)
STATE_REMOVED = CounterMetric(
    "stepstream_job_state_removed_total",
    "entries",
    "Entries removed from the saved state, by age or by the cap.",
    ("kind", "why"),
)
LAG_SECONDS = GaugeMetric(
    "stepstream_job_lag_seconds", "seconds", "Age of the newest record of the last batch at its end."
)
LAG_OFFSETS = GaugeMetric(
    "stepstream_job_lag_offsets",
    "offsets",
    "Offsets of the input behind the positions that this worker has fetched and processed, at its last fetch.",
)
BATCH_SECONDS = HistogramMetric(
    "stepstream_job_batch_seconds", "seconds", "Time to process one batch.", buckets=_SECONDS
)

EVERY_JOB = (
    READY, RECORDS_IN, RECORDS_OUT, DEAD_LETTERS, REDELIVERED, DUPLICATES, SUPERSEDED, LATE_FEEDBACK, WITHHELD,
    LATE_ERASED, REDACTIONS, JUDGED, VERIFIED, FAILED_TICKS, REPLAYED, HISTORY_LOST, SNAPSHOTS, SNAPSHOT_AGE,
    STATE_ENTRIES, STATE_ADDED, STATE_REMOVED, LAG_SECONDS, LAG_OFFSETS, BATCH_SECONDS,
)  # fmt: skip

ALARMS = CounterMetric(
    "stepstream_alarms_total", "alarms", "Alarms raised or cleared, by kind of the series that fell.", ("kind", "state")
)
ALARMS_ACTIVE = GaugeMetric("stepstream_alarms_active", "alarms", "Alarms that are active.")
WATCH_PERIODS = GaugeMetric("stepstream_watch_periods", "periods", "Periods of all cohorts in memory.")
WATCH = (ALARMS, ALARMS_ACTIVE, WATCH_PERIODS)

REFRESH_LAG = GaugeMetric(
    "stepstream_store_refresh_lag_seconds",
    "seconds",
    "Time since the last refresh of the rollup that was refreshed longest ago.",
)
REWRITING_AGE = GaugeMetric(
    "stepstream_store_rewriting_age_seconds",
    "seconds",
    "Time since the oldest unfinished rewriting of parts with hidden rows began; 0: none is in progress.",
)
SINK = (REFRESH_LAG, REWRITING_AGE)

CURATE_DECISIONS = GaugeMetric("stepstream_curate_decisions", "decisions", "Decisions in memory.")
CURATE_FORGOTTEN = CounterMetric(
    "stepstream_curate_decisions_forgotten_total", "decisions", "Decisions that left memory by age or by the cap."
)
CURATE = (CURATE_DECISIONS, CURATE_FORGOTTEN)
