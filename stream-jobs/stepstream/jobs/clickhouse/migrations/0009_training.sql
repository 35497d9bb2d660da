-- What learners did with labelled trajectories, update by update.

CREATE TABLE IF NOT EXISTS training_decisions
(
    event_id String,
    trajectory_id String,
    revision Int32 COMMENT 'Revision of the label that this is about.',
    occurred_at DateTime64(6, 'UTC'),
    group_id Nullable(String),
    tenant LowCardinality(String),
    model LowCardinality(String),
    root Int32 COMMENT 'Version that the lineage began with.',
    outcome LowCardinality(String),
    reason LowCardinality(String),
    learner_version Int32 COMMENT 'Version that the learner trained from.',
    staleness Nullable(Int32),
    update Nullable(Int64),
    checkpoint_version Nullable(Int32) COMMENT 'First version that was trained on it.',
    trained_revision Nullable(Int32) COMMENT 'Older revision that this lineage has trained on.',
    partition Int32,
    offset Int64,
    job LowCardinality(String)
)
ENGINE = ReplacingMergeTree(occurred_at)
ORDER BY (trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS learner_updates
(
    event_id String,
    occurred_at DateTime64(6, 'UTC'),
    model LowCardinality(String),
    root Int32 COMMENT 'Version that the lineage began with.',
    update Int64 COMMENT 'Since the root, from 1; one that a crash undid is replaced by its number.',
    learner_version Int32 COMMENT 'Version that it trained from.',
    groups Int32,
    trajectories Int32,
    figures Map(LowCardinality(String), Float64),
    dropped Map(LowCardinality(String), Int64) COMMENT 'Attempts dropped since the update before, by reason.',
    seconds Map(LowCardinality(String), Float64) COMMENT 'Since the update before, by what they went into.',
    job LowCardinality(String)
)
ENGINE = ReplacingMergeTree(occurred_at)
ORDER BY (model, root, update)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS learner_update_lags
(
    occurred_at DateTime64(6, 'UTC'),
    model LowCardinality(String),
    root Int32,
    update Int64,
    least Int32 COMMENT 'Smallest staleness of the range, in versions.',
    most Nullable(Int32) COMMENT 'Largest; NULL: no limit.',
    tokens Int64,
    effective_share Float64,
    clip_share Float64,
    rejected_share Float64,
    kl Float64
)
ENGINE = ReplacingMergeTree(occurred_at)
ORDER BY (model, root, update, least)
SETTINGS non_replicated_deduplication_window = 1000;

-- Attempts by what became of them; one that was trained on counts as trained, whatever became of its other revisions.
CREATE OR REPLACE VIEW training_outcomes AS
SELECT model, root, tenant, outcome, reason, count() AS trajectories
FROM
(
    SELECT
        model,
        root,
        tenant,
        trajectory_id,
        argMax(d.outcome, (d.outcome = 'trained', d.revision, d.occurred_at)) AS outcome,
        argMax(d.reason, (d.outcome = 'trained', d.revision, d.occurred_at)) AS reason
    FROM (SELECT * FROM training_decisions FINAL) AS d
    GROUP BY model, root, tenant, trajectory_id
)
GROUP BY model, root, tenant, outcome, reason;
