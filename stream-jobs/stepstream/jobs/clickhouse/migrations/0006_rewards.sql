-- Every component of a reward on its own, in every revision of its label; the specifications; what a label waits for.

CREATE TABLE IF NOT EXISTS reward_components
(
    label_id String COMMENT 'event_id of the label that it is of.',
    trajectory_id String,
    step_index Int32 COMMENT 'Step at which it is paid.',
    revision Int32 COMMENT 'Revision of the label; in `current_reward_components`, the newest alone.',
    name LowCardinality(String),
    kind LowCardinality(String) COMMENT 'term, raw, shaping, guard or shadow.',
    level LowCardinality(String) COMMENT 'trajectory or step.',
    source LowCardinality(String),
    value Float64 COMMENT 'After its bounds, before its weight.',
    raw_value Float64 COMMENT 'As it was measured; of shaping, the potential.',
    weight Float64,
    final Bool COMMENT 'Whether nothing that comes later can change it.',
    feedback_event_id Nullable(String),
    reward_spec LowCardinality(String),
    reward_spec_version Int32,
    tenant LowCardinality(String),
    environment LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    policy_version Nullable(Int32) COMMENT 'Newest policy version in the trajectory.',
    split LowCardinality(String),
    ended_at DateTime64(6, 'UTC') COMMENT 'Time of the last step of the trajectory.',
    INDEX by_time ended_at TYPE minmax
)
ENGINE = ReplacingMergeTree
ORDER BY (trajectory_id, step_index, name, revision, label_id)
SETTINGS non_replicated_deduplication_window = 1000, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS reward_specs
(
    event_id String,
    name LowCardinality(String),
    version Int32,
    digest String,
    occurred_at DateTime64(6, 'UTC'),
    document String,
    environments Array(String),
    agents Array(String),
    author LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (name, version)
SETTINGS non_replicated_deduplication_window = 1000;

ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS reward_spec_version Int32 DEFAULT 0 COMMENT 'Version on `reward-specs`; 0: the specification of the settings, or the built-in one.';
ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS pending Array(LowCardinality(String)) COMMENT 'Required reward components that are still waited for.';
ALTER TABLE closures ADD COLUMN IF NOT EXISTS components Array(LowCardinality(String)) COMMENT 'With `waited`: reward components that are waited for no longer.';

-- The components of each trajectory's newest label.
CREATE OR REPLACE VIEW current_reward_components AS
SELECT *
FROM reward_components FINAL
WHERE label_id IN (SELECT event_id FROM trajectories FINAL);

-- The component chart: each component by the minute in which its trajectories ended and by policy version. `mean` is of
-- the values, `paid` what it adds to the reward of a trajectory. A component that is gamed shows here, whatever the sum.
CREATE OR REPLACE VIEW component_rates AS
SELECT
    toStartOfMinute(ended_at) AS minute,
    tenant,
    environment,
    agent,
    model,
    policy_version,
    split,
    name AS component,
    kind,
    source,
    count() AS n,
    uniqExact(trajectory_id) AS trajectories,
    avg(value) AS mean,
    sum(value * weight) / trajectories AS paid
FROM current_reward_components
GROUP BY minute, tenant, environment, agent, model, policy_version, split, component, kind, source;
