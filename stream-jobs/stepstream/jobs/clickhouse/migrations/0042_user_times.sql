-- Times of each person's rows in a trajectory: an erasure finds the rows of a person without the users of all steps.
-- The rows of earlier releases sum over all users, and no key tells them from those without a user: they are replaced.
DROP VIEW IF EXISTS steps_times SYNC;

DROP VIEW IF EXISTS trajectories_times SYNC;

RENAME TABLE trajectory_times TO trajectory_times_0041;

CREATE TABLE IF NOT EXISTS trajectory_times
(
    trajectory_key UInt64 CODEC(NONE) COMMENT 'sipHash64(trajectory_id).',
    tenant LowCardinality(String),
    user_key UInt64 CODEC(NONE) COMMENT 'sipHash64(user) of the rows; 0: they name nobody.',
    first SimpleAggregateFunction(min, DateTime64(3, 'UTC')) CODEC(Delta, ZSTD(1)) COMMENT 'Of its steps and of its opening.',
    last SimpleAggregateFunction(max, DateTime64(3, 'UTC')) CODEC(Delta, ZSTD(1))
)
ENGINE = AggregatingMergeTree
ORDER BY (trajectory_key, tenant, user_key)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 1024, old_parts_lifetime = 60;

CREATE MATERIALIZED VIEW IF NOT EXISTS steps_times TO trajectory_times AS
SELECT sipHash64(trajectory_id) AS trajectory_key, tenant, if(user = '', 0, sipHash64(user)) AS user_key,
    min(occurred_at) AS first, max(occurred_at) AS last
FROM steps GROUP BY trajectory_key, tenant, user_key;

CREATE MATERIALIZED VIEW IF NOT EXISTS trajectories_times TO trajectory_times AS
SELECT sipHash64(trajectory_id) AS trajectory_key, tenant, if(user = '', 0, sipHash64(user)) AS user_key,
    min(opened_at) AS first, max(opened_at) AS last
FROM trajectories GROUP BY trajectory_key, tenant, user_key;

-- Rows of earlier releases, and those that came between. To repeat it changes nothing. No GROUP BY, whose state would
-- hold every trajectory: the engine aggregates them.
INSERT INTO trajectory_times (trajectory_key, tenant, user_key, first, last)
SELECT sipHash64(trajectory_id), tenant, if(user = '', 0, sipHash64(user)), occurred_at, occurred_at FROM steps;

INSERT INTO trajectory_times (trajectory_key, tenant, user_key, first, last)
SELECT sipHash64(trajectory_id), tenant, if(user = '', 0, sipHash64(user)), opened_at, opened_at FROM trajectories;

DROP TABLE IF EXISTS trajectory_times_0041 SYNC;
