"""Declare the learner's Prometheus metrics."""

from prometheus_client import Counter, Gauge, Histogram

UPDATES = Counter("stepstream_learner_updates", "Updates done by this process.")
TOKENS = Counter("stepstream_learner_trained_tokens", "Tokens trained on by this process.")
VERSION = Gauge("stepstream_learner_version", "Version from which the learner trains.")
READ = Counter("stepstream_learner_trajectories_read", "Labelled trajectories read.")
DEAD_LETTERS = Counter("stepstream_learner_dead_letters", "Labelled trajectories that could not be read.", ["error"])
DROPPED = Counter("stepstream_learner_trajectories_dropped", "Attempts that were not trained on.", ["reason"])
DUPLICATES = Counter("stepstream_learner_duplicates", "Copies of known records.")
STALENESS = Histogram(
    "stepstream_learner_staleness_versions",
    "Staleness of the attempts trained on.",
    buckets=(0, 1, 2, 3, 4, 6, 8, 12, 16, 32),
)
LAG_TOKENS = Counter(
    "stepstream_learner_tokens_by_staleness",
    "Tokens trained on, by the upper end of their staleness in versions.",
    ["most"],
)
LAG_EFFECTIVE = Gauge(
    "stepstream_learner_effective_share_by_staleness",
    "Effective sample size of the last update's tokens as a share of their number, by the same ranges.",
    ["most"],
)
MU_GAPS = Counter(
    "stepstream_learner_mu_gaps", "Updates whose `mu_gap_max` exceeded `learner.max_mu_gap`: an engine that differs."
)
GAP_ALARM = Gauge(
    "stepstream_learner_gap_alarm", "1 while the alarm about the gap between engine and learner is active."
)
REMOVED = Counter(
    "stepstream_learner_versions_removed", "Versions that lost files by retention: `all`, or `training` only.", ["part"]
)
RETENTION_FAULTS = Counter(
    "stepstream_learner_retention_faults", "Attempts to remove old versions that failed, and are repeated later."
)
SHARED = Counter(
    "stepstream_learner_shared_versions",
    "Versions for `paths.shared_memory`, by outcome: shared, too_large, no_room, failed.",
    ["outcome"],
)
FIGURE = Gauge("stepstream_learner_update", "Figures of the last update.", ["figure"])
READY = Gauge("stepstream_learner_groups_ready", "Groups that wait for an update.")
WAITING = Gauge("stepstream_learner_groups_open", "Groups that wait for attempts.")
SECONDS = Counter("stepstream_learner_seconds", "Time by activity: train, publish, fold, wait, read.", ["activity"])
PUBLICATION = Histogram(
    "stepstream_learner_publication_seconds",
    "Time from the copy of a version's state to the acknowledgement of its event; training goes on meanwhile.",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
PUBLICATION_FAULTS = Counter(
    "stepstream_learner_publication_faults", "Attempts to write a version that the disk or the store refused."
)
PUBLICATION_FAILING = Gauge(
    "stepstream_learner_publication_failing", "1 while the newest version cannot be written; the learner tries again."
)
READER_CPU = Counter(
    "stepstream_learner_reader_cpu_seconds", "CPU time of the thread that reads and decodes while updates run."
)
