-- Hours of each cohort whose rows are stored: a view finds those in its range without the cohort's times.
ALTER TABLE materialized_cohorts ADD COLUMN IF NOT EXISTS first_hour DateTime('UTC') COMMENT 'First hour with attempts.';
ALTER TABLE materialized_cohorts ADD COLUMN IF NOT EXISTS last_hour DateTime('UTC') COMMENT 'Last hour with attempts.';

-- The hours of a cohort are known with its first trajectory, before the rollups: views compute the cohorts that they know.
CREATE MATERIALIZED VIEW IF NOT EXISTS trajectories_cohort_times TO cohort_times AS
SELECT
    tenant,
    reinterpretAsUInt128(MD5(toString((tenant, agent, model, environment, harness_version, version_max, track, split)))) AS cohort_digest,
    first, last, toDateTime64(0, 6, 'UTC') AS changed
FROM
(
    SELECT
        tenant, agent, model, environment, harness_version, version_max, track, split,
        toStartOfHour(toDateTime(min(opened_at), 'UTC')) AS first, toStartOfHour(toDateTime(max(opened_at), 'UTC')) AS last
    FROM trajectories
    GROUP BY tenant, agent, model, environment, harness_version, version_max, track, split
);

-- The name is first in its key: a view reads the rows of its names only. The rows of the table before are not needed:
-- this release stores the rows of all views again.
DROP VIEW IF EXISTS cohort_signals_refresh SYNC;

DROP TABLE IF EXISTS cohort_signals SYNC;

CREATE TABLE IF NOT EXISTS cohort_signals
(
    tenant LowCardinality(String) COMMENT 'Empty: the row is that of the last refresh.',
    cohort_digest UInt128 CODEC(NONE) COMMENT 'As in task_hours.',
    name LowCardinality(String) COMMENT 'As in feedback_marks.',
    changed SimpleAggregateFunction(max, DateTime64(6, 'UTC')) COMMENT 'Time of the newest refresh that found its feedback.'
)
ENGINE = AggregatingMergeTree
ORDER BY (name, tenant, cohort_digest)
SETTINGS non_replicated_deduplication_window = 1000;

INSERT INTO cohort_signals (tenant, cohort_digest, name, changed) SELECT '', 0, '', now64(6, 'UTC');
