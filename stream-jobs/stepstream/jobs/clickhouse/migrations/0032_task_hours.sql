-- Outcomes of the attempts at each task in an hour: views that average over tasks read them instead of trajectories.
CREATE TABLE IF NOT EXISTS task_hours
(
    hour DateTime('UTC'),
    tenant LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    environment LowCardinality(String),
    harness_version LowCardinality(String),
    policy_version Int32,
    track LowCardinality(String),
    split LowCardinality(String),
    task_id String CODEC(ZSTD(1)),
    group_id String CODEC(ZSTD(1)),
    trajectories UInt64 CODEC(T64, ZSTD(1)),
    outcomes UInt64 CODEC(T64, ZSTD(1)) COMMENT 'Those with an outcome; one cut off by a limit without any is a failure.',
    successes UInt64 CODEC(T64, ZSTD(1)),
    steps UInt64 CODEC(T64, ZSTD(1)) COMMENT 'Steps of those with an outcome.',
    length Nested(steps UInt32, outcomes UInt64, failures UInt64) COMMENT 'Those with an outcome by their steps.',
    version DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(hour)
ORDER BY (hour, tenant, agent, model, environment, harness_version, policy_version, track, split, task_id, group_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- The refresh fills it: all hours that have facts are due. Once each: a mark of the last minute makes them due again.
INSERT INTO dirty_hours (of, hour, at)
SELECT 'trajectories' AS of, toStartOfHour(toDateTime(opened_at, 'UTC')) AS hour, now64(6, 'UTC') - INTERVAL 1 DAY AS at
FROM trajectories GROUP BY hour;
