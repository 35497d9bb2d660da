"""Define the learner's metrics."""

from stepstream.core.metrics.definition import CounterMetric, GaugeMetric, HistogramMetric

UPDATES = CounterMetric("stepstream_learner_updates_total", "updates", "Updates done by this process.")
TOKENS = CounterMetric("stepstream_learner_trained_tokens_total", "tokens", "Tokens trained on by this process.")
VERSION = GaugeMetric("stepstream_learner_version", "version", "Version from which the learner trains.")
READ = CounterMetric("stepstream_learner_trajectories_read_total", "trajectories", "Labelled trajectories read.")
DEAD_LETTERS = CounterMetric(
    "stepstream_learner_dead_letters_total", "records", "Labelled trajectories that could not be read.", ("error",)
)
DROPPED = CounterMetric(
    "stepstream_learner_trajectories_dropped_total", "attempts", "Attempts that were not trained on.", ("reason",)
)
DUPLICATES = CounterMetric("stepstream_learner_duplicates_total", "records", "Copies of known records.")
STALENESS = HistogramMetric(
    "stepstream_learner_staleness_versions",
    "versions",
    "Staleness of the attempts trained on.",
    buckets=(0, 1, 2, 3, 4, 6, 8, 12, 16, 32),
)
LAG_TOKENS = CounterMetric(
    "stepstream_learner_tokens_by_staleness_total",
    "tokens",
    "Tokens trained on, by the upper end of their staleness in versions.",
    ("most",),
)
LAG_EFFECTIVE = GaugeMetric(
    "stepstream_learner_effective_share_by_staleness",
    "share",
    "Effective sample size of the last update's tokens as a share of their number, by the same ranges.",
    ("most",),
)
MU_GAPS = CounterMetric(
    "stepstream_learner_mu_gaps_total",
    "updates",
    "Updates whose `mu_gap_max` exceeded `learner.max_mu_gap`: an engine that differs.",
)
GAP_ALARM = GaugeMetric(
    "stepstream_learner_gap_alarm",
    "0 or 1",
    "1 while the alarm about the gap between engine and learner is active.",
)
REMOVED = CounterMetric(
    "stepstream_learner_versions_removed_total",
    "versions",
    "Versions that lost files by retention: `all`, or `training` only.",
    ("part",),
)
RETENTION_FAULTS = CounterMetric(
    "stepstream_learner_retention_faults_total",
    "attempts",
    "Attempts to remove old versions that failed, and are repeated later.",
)
SHARED = CounterMetric(
    "stepstream_learner_shared_versions_total",
    "versions",
    "Versions for `paths.shared_memory`, by outcome: shared, too_large, no_room, failed.",
    ("outcome",),
)
FIGURE = GaugeMetric("stepstream_learner_update", "as the figure", "Figures of the last update.", ("figure",))
GROUPS_READY = GaugeMetric("stepstream_learner_groups_ready", "groups", "Groups that wait for an update.")
GROUPS_OPEN = GaugeMetric("stepstream_learner_groups_open", "groups", "Groups that wait for attempts.")
SECONDS = CounterMetric(
    "stepstream_learner_seconds_total",
    "seconds",
    "Time by activity: train, publish, fold, wait, read.",
    ("activity",),
)
PUBLICATION = HistogramMetric(
    "stepstream_learner_publication_seconds",
    "seconds",
    "Time from the copy of a version's state to the acknowledgement of its event; training goes on meanwhile.",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
PUBLICATION_FAULTS = CounterMetric(
    "stepstream_learner_publication_faults_total",
    "attempts",
    "Attempts to write a version that the disk or the store refused.",
)
PUBLICATION_FAILING = GaugeMetric(
    "stepstream_learner_publication_failing",
    "0 or 1",
    "1 while the newest version cannot be written; the learner tries again.",
)
PAUSED = GaugeMetric(
    "stepstream_learner_paused", "0 or 1", "1 while the newest record of `training-control` pauses the learner."
)
READER_CPU = CounterMetric(
    "stepstream_learner_reader_cpu_seconds_total",
    "seconds",
    "CPU time of the thread that reads and decodes while updates run.",
)

LEARNER = (
    UPDATES, TOKENS, VERSION, READ, DEAD_LETTERS, DROPPED, DUPLICATES, STALENESS, LAG_TOKENS, LAG_EFFECTIVE, MU_GAPS,
    GAP_ALARM, REMOVED, RETENTION_FAULTS, SHARED, FIGURE, GROUPS_READY, GROUPS_OPEN, SECONDS, PUBLICATION,
    PUBLICATION_FAULTS, PUBLICATION_FAILING, PAUSED, READER_CPU,
)  # fmt: skip
