-- Names of each cohort. Views group attempts by a digest of the names, and join the names to their few rows.
CREATE TABLE IF NOT EXISTS cohorts
(
    tenant LowCardinality(String),
    cohort_digest UInt128 CODEC(NONE) COMMENT 'MD5 of the names: nobody can choose names that have the digest of another tenant''s.',
    agent LowCardinality(String),
    model LowCardinality(String),
    environment LowCardinality(String),
    harness_version LowCardinality(String),
    policy_version Int32,
    track LowCardinality(String),
    split LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (tenant, cohort_digest)
SETTINGS non_replicated_deduplication_window = 1000;

-- The digest takes the place of `cohort_key`, which needed the tenant beside it.
ALTER TABLE task_hours ADD COLUMN IF NOT EXISTS cohort_digest UInt128 MATERIALIZED reinterpretAsUInt128(MD5(toString((tenant, agent, model, environment, harness_version, policy_version, track, split)))) CODEC(ZSTD(1)) COMMENT 'Digest of the names of the cohort: tenant, agent, model, environment, harness_version, policy_version, track and split.';
ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS cohort_digest UInt128 MATERIALIZED reinterpretAsUInt128(MD5(toString((tenant, agent, model, environment, harness_version, version_max, track, split)))) CODEC(ZSTD(1)) COMMENT 'As in task_hours, of version_max.';

-- The last failed call: views of failures need no arrays of calls.
ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS failed_tool LowCardinality(String) MATERIALIZED if(arrayLastIndex(error -> error != '', call.error) = 0, '', call.tool[arrayLastIndex(error -> error != '', call.error)]) COMMENT 'Tool of the last call that failed; empty: none failed.';
ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS failed_error LowCardinality(String) MATERIALIZED arrayLast(error -> error != '', call.error) COMMENT 'Error class of that call; empty: none failed.';

CREATE MATERIALIZED VIEW IF NOT EXISTS trajectories_cohorts TO cohorts AS
SELECT DISTINCT
    tenant,
    reinterpretAsUInt128(MD5(toString((tenant, agent, model, environment, harness_version, version_max, track, split)))) AS cohort_digest,
    agent, model, environment, harness_version, version_max AS policy_version, track, split
FROM trajectories;

-- Cohorts of earlier rows, also of hours whose facts are gone.
INSERT INTO cohorts (tenant, cohort_digest, agent, model, environment, harness_version, policy_version, track, split)
SELECT tenant, reinterpretAsUInt128(MD5(toString((tenant, agent, model, environment, harness_version, policy_version, track, split)))),
    agent, model, environment, harness_version, policy_version, track, split
FROM
(
    SELECT tenant, agent, model, environment, harness_version, version_max AS policy_version, track, split FROM trajectories
    UNION DISTINCT
    SELECT tenant, agent, model, environment, harness_version, policy_version, track, split FROM task_hours
);

-- Parts of earlier releases get the columns too; until then, and if it is repeated, the values are the same.
ALTER TABLE task_hours MATERIALIZE COLUMN cohort_digest;
ALTER TABLE trajectories MATERIALIZE COLUMN cohort_digest;
ALTER TABLE trajectories MATERIALIZE COLUMN failed_tool;
ALTER TABLE trajectories MATERIALIZE COLUMN failed_error;

-- 8 bytes a row. Views of this release do not read it.
ALTER TABLE task_hours DROP COLUMN IF EXISTS cohort_key;
