-- Partitions of a week instead of a day: a mutation costs 10 to 25 ms for each part, and a query plans all that it reads
-- (docs/decisions/analytics-tables.md). The rows of a week reach their age on different days, so that merges delete
-- them, at most once a day. 0052 copies the rows, and 0053 drops the old tables.

RENAME TABLE steps TO steps_0050;

CREATE TABLE IF NOT EXISTS steps AS steps_0050
ENGINE = ReplacingMergeTree(governed_by)
PARTITION BY toMonday(occurred_at)
PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, step_index, source_key, occurred_at)
SETTINGS non_replicated_deduplication_window = 1000, merge_with_ttl_timeout = 86400, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60, auto_statistics_types = '';

RENAME TABLE step_contents TO step_contents_0050;

CREATE TABLE IF NOT EXISTS step_contents AS step_contents_0050
ENGINE = ReplacingMergeTree(governed_by)
PARTITION BY toMonday(occurred_at)
PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, step_index, source_key, occurred_at)
SETTINGS non_replicated_deduplication_window = 1000, merge_with_ttl_timeout = 86400, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60;

RENAME TABLE trajectories TO trajectories_0050;

CREATE TABLE IF NOT EXISTS trajectories AS trajectories_0050
ENGINE = ReplacingMergeTree(precedence)
PARTITION BY toMonday(opened_at)
PRIMARY KEY (tenant, toStartOfHour(opened_at), trajectory_id)
ORDER BY (tenant, toStartOfHour(opened_at), trajectory_id, opened_at)
SETTINGS non_replicated_deduplication_window = 1000, merge_with_ttl_timeout = 86400, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60, auto_statistics_types = '';

RENAME TABLE feedback TO feedback_0050;

CREATE TABLE IF NOT EXISTS feedback AS feedback_0050
ENGINE = ReplacingMergeTree(governed_by)
PARTITION BY toMonday(occurred_at)
PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, source_key, occurred_at)
SETTINGS non_replicated_deduplication_window = 1000, merge_with_ttl_timeout = 86400, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60, auto_statistics_types = '',
    min_bytes_for_wide_part = 1048576;

-- A view of inserts follows the table that is renamed.
DROP VIEW IF EXISTS steps_times SYNC;

CREATE MATERIALIZED VIEW IF NOT EXISTS steps_times TO trajectory_times AS
SELECT sipHash64(trajectory_id) AS trajectory_key, tenant, if(user = '', 0, sipHash64(user)) AS user_key,
    min(occurred_at) AS first, max(occurred_at) AS last
FROM steps GROUP BY trajectory_key, tenant, user_key;

DROP VIEW IF EXISTS steps_dirty SYNC;

CREATE MATERIALIZED VIEW IF NOT EXISTS steps_dirty TO dirty_hours AS
SELECT 'steps' AS of, toStartOfHour(toDateTime(occurred_at, 'UTC')) AS hour, now64(6, 'UTC') AS at FROM steps GROUP BY hour;

DROP VIEW IF EXISTS trajectories_times SYNC;

CREATE MATERIALIZED VIEW IF NOT EXISTS trajectories_times TO trajectory_times AS
SELECT sipHash64(trajectory_id) AS trajectory_key, tenant, if(user = '', 0, sipHash64(user)) AS user_key,
    min(opened_at) AS first, max(opened_at) AS last
FROM trajectories GROUP BY trajectory_key, tenant, user_key;

DROP VIEW IF EXISTS trajectories_dirty SYNC;

CREATE MATERIALIZED VIEW IF NOT EXISTS trajectories_dirty TO dirty_hours AS
SELECT 'trajectories' AS of, toStartOfHour(toDateTime(opened_at, 'UTC')) AS hour, now64(6, 'UTC') AS at FROM trajectories GROUP BY hour;

DROP VIEW IF EXISTS trajectories_cohorts SYNC;

CREATE MATERIALIZED VIEW IF NOT EXISTS trajectories_cohorts TO cohorts AS
SELECT DISTINCT
    tenant,
    reinterpretAsUInt128(MD5(toString((tenant, agent, model, environment, harness_version, version_max, track, split)))) AS cohort_digest,
    agent, model, environment, harness_version, version_max AS policy_version, track, split
FROM trajectories;

DROP VIEW IF EXISTS trajectories_cohort_times SYNC;

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

DROP VIEW IF EXISTS feedback_marked SYNC;

CREATE MATERIALIZED VIEW IF NOT EXISTS feedback_marked TO feedback_marks AS
SELECT DISTINCT
    now64(6, 'UTC') AS at, tenant, sipHash64(trajectory_id) AS trajectory_key, if(retracts = '', name, '') AS name
FROM feedback;

-- Rows that came before the views of inserts: to insert them again marks and times them. Copies are removed.
INSERT INTO steps (tenant, trajectory_id, step_index, finish_reason, duration_ms, first_token_ms, cost_usd, agent, model, environment, harness_version, track, split, fidelity, consent, task_id, occurred_at, version_min, version_max, shared_tokens, prompt_tokens, response_tokens, logprob_sum, tools, error, trainable, flags, source_key, governed_by, user, group_id)
SELECT tenant, trajectory_id, step_index, finish_reason, duration_ms, first_token_ms, cost_usd, agent, model, environment, harness_version, track, split, fidelity, consent, task_id, occurred_at, version_min, version_max, shared_tokens, prompt_tokens, response_tokens, logprob_sum, tools, error, trainable, flags, source_key, governed_by, user, group_id
FROM steps
SETTINGS max_partitions_per_insert_block = 0, insert_deduplicate = 0;

INSERT INTO trajectories (tenant, trajectory_id, revision, end, closed_by, complete, success, reward, reward_spec, reward_spec_version, pending, flags, trainable, prompt_tokens, response_tokens, cost_usd, labelled_by, agent, model, environment, harness_version, track, split, fidelity, consent, task_id, label_id, opened_at, started_at, ended_at, labelled_at, version_min, version_max, parent_trajectory_id, parent_step_index, steps, sequences, errors, duration_ms, user, group_id, step.index, step.event_key, step.reward, step.return_to_go, step.tokens, call.step, call.tool, call.error, call.ms, component.step, component.name, component.kind, component.source, component.value, component.raw, component.weight, component.final)
SELECT tenant, trajectory_id, revision, end, closed_by, complete, success, reward, reward_spec, reward_spec_version, pending, flags, trainable, prompt_tokens, response_tokens, cost_usd, labelled_by, agent, model, environment, harness_version, track, split, fidelity, consent, task_id, label_id, opened_at, started_at, ended_at, labelled_at, version_min, version_max, parent_trajectory_id, parent_step_index, steps, sequences, errors, duration_ms, user, group_id, step.index, step.event_key, step.reward, step.return_to_go, step.tokens, call.step, call.tool, call.error, call.ms, component.step, component.name, component.kind, component.source, component.value, component.raw, component.weight, component.final
FROM trajectories
SETTINGS max_partitions_per_insert_block = 0, insert_deduplicate = 0;

INSERT INTO feedback (tenant, trajectory_id, event_id, producer, consent, name, value, comment, demonstration, source, end, occurred_at, source_event_id, step_index, tool_call_id, user, category, retracts, last_step_index, redactions, flags, source_key, governed_by)
SELECT tenant, trajectory_id, event_id, producer, consent, name, value, comment, demonstration, source, end, occurred_at, source_event_id, step_index, tool_call_id, user, category, retracts, last_step_index, redactions, flags, source_key, governed_by
FROM feedback
SETTINGS max_partitions_per_insert_block = 0, insert_deduplicate = 0;
