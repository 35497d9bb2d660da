-- First and last hour of each cohort, and when its attempts changed last: views compute a cohort at rest once.
CREATE TABLE IF NOT EXISTS cohort_times
(
    tenant LowCardinality(String),
    cohort_digest UInt128 CODEC(NONE) COMMENT 'As in task_hours.',
    first SimpleAggregateFunction(min, DateTime('UTC')) COMMENT 'First hour with attempts, also of ones that are gone.',
    last SimpleAggregateFunction(max, DateTime('UTC')) COMMENT 'Last hour with attempts, also of ones that are gone.',
    changed SimpleAggregateFunction(max, DateTime64(6, 'UTC')) COMMENT 'Newest version of its rows in task_hours.'
)
ENGINE = AggregatingMergeTree
ORDER BY (tenant, cohort_digest)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE MATERIALIZED VIEW IF NOT EXISTS task_hours_cohorts TO cohort_times AS
SELECT
    tenant,
    reinterpretAsUInt128(MD5(toString((tenant, agent, model, environment, harness_version, policy_version, track, split)))) AS cohort_digest,
    min(hour) AS first, max(hour) AS last, max(version) AS changed
FROM task_hours
WHERE tenant != ''
GROUP BY tenant, cohort_digest;

-- Rows of earlier releases. To repeat it changes nothing.
INSERT INTO cohort_times (tenant, cohort_digest, first, last, changed)
SELECT tenant, cohort_digest, min(hour), max(hour), max(version) FROM task_hours WHERE tenant != '' GROUP BY tenant, cohort_digest;

-- Cohorts whose rows of a view are stored in `VIEW_of_cohorts`.
CREATE TABLE IF NOT EXISTS materialized_cohorts
(
    view LowCardinality(String),
    cohort_digest UInt128 CODEC(NONE),
    version DateTime64(6, 'UTC') COMMENT 'When the rows were computed; they have the same.'
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (view, cohort_digest)
SETTINGS non_replicated_deduplication_window = 1000;
