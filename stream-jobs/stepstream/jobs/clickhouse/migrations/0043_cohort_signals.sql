-- When feedback last came about the trajectories of each cohort, by name: rows of views that read feedback are stored
-- by cohort, and count until then (materialized_views.py).
CREATE TABLE IF NOT EXISTS feedback_marks
(
    at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'When it was inserted.',
    tenant LowCardinality(String),
    trajectory_key UInt64 CODEC(NONE) COMMENT 'As in trajectory_times.',
    name LowCardinality(String) COMMENT 'Empty: it takes back feedback of any name.'
)
ENGINE = MergeTree
PARTITION BY toDate(at)
ORDER BY (at, tenant, trajectory_key)
TTL toDateTime(at) + INTERVAL 7 DAY
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS feedback_marked TO feedback_marks AS
SELECT DISTINCT
    now64(6, 'UTC') AS at, tenant, sipHash64(trajectory_id) AS trajectory_key, if(retracts = '', name, '') AS name
FROM feedback;

CREATE TABLE IF NOT EXISTS cohort_signals
(
    tenant LowCardinality(String) COMMENT 'Empty: the row is that of the last refresh.',
    cohort_digest UInt128 CODEC(NONE) COMMENT 'As in task_hours.',
    name LowCardinality(String) COMMENT 'As in feedback_marks.',
    changed SimpleAggregateFunction(max, DateTime64(6, 'UTC')) COMMENT 'Time of the newest refresh that found its feedback.'
)
ENGINE = AggregatingMergeTree
ORDER BY (tenant, cohort_digest, name)
SETTINGS non_replicated_deduplication_window = 1000;

-- Feedback about some trajectories is found without their ids.
ALTER TABLE feedback ADD COLUMN IF NOT EXISTS trajectory_key UInt64 MATERIALIZED sipHash64(trajectory_id) CODEC(NONE) COMMENT 'As in trajectory_times.';
ALTER TABLE feedback MATERIALIZE COLUMN trajectory_key;
