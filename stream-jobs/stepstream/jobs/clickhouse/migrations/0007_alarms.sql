-- What rewards are made of over time, and the alarms about it.

CREATE TABLE IF NOT EXISTS component_stats
(
    event_id String,
    occurred_at DateTime64(6, 'UTC'),
    key String,
    partition Int32,
    version Int64 COMMENT 'Offset after the last record folded; the newest is the whole truth of its partition.',
    environment LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    split LowCardinality(String),
    reward_spec LowCardinality(String),
    policy_version Nullable(Int32),
    hour Int64 COMMENT 'Hour in which the trajectories ended, in hours since the Unix epoch.',
    names Array(LowCardinality(String)) COMMENT 'Series; the other arrays are in the same order.',
    kinds Array(LowCardinality(String)),
    weights Array(Float64),
    trajectories Array(Int64),
    totals Array(Float64),
    squares Array(Float64)
)
ENGINE = ReplacingMergeTree(version)
ORDER BY key
SETTINGS non_replicated_deduplication_window = 1000;

-- Mean of each reward component over the trajectories of a policy version and hour, with its spread; beside them the
-- whole reward and success. A correction by a cap is 0 where there was none.
CREATE OR REPLACE VIEW component_means AS
SELECT
    environment,
    agent,
    model,
    split,
    reward_spec,
    policy_version,
    hour,
    kind,
    name,
    weight,
    sum(if(startsWith(name, 'cap:'), whole, count)) AS trajectories,
    sum(total) / trajectories AS mean,
    sqrt(greatest(0., sum(square) / trajectories - mean * mean)) AS spread
FROM (SELECT *, c.trajectories[indexOf(kinds, 'reward')] AS whole FROM component_stats AS c FINAL) AS s
ARRAY JOIN kinds AS kind, names AS name, weights AS weight, s.trajectories AS count, totals AS total, squares AS square
GROUP BY environment, agent, model, split, reward_spec, policy_version, hour, kind, name, weight
HAVING trajectories > 0;

CREATE TABLE IF NOT EXISTS alarms
(
    event_id String,
    occurred_at DateTime64(6, 'UTC'),
    alarm_id String,
    state LowCardinality(String) COMMENT 'raised or cleared.',
    kind LowCardinality(String),
    environment LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    split LowCardinality(String),
    reward_spec LowCardinality(String),
    rising LowCardinality(String),
    falling LowCardinality(String),
    rising_before Float64,
    rising_after Float64,
    falling_before Float64,
    falling_after Float64,
    trajectories_before Int64,
    trajectories_after Int64,
    p_value Float64,
    threshold Float64,
    baseline_version Nullable(Int32),
    since_version Nullable(Int32),
    until_version Nullable(Int32),
    message String
)
ENGINE = ReplacingMergeTree
ORDER BY (alarm_id, occurred_at, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- Alarms as they are now, with when they were raised.
CREATE OR REPLACE VIEW alarms_now AS
SELECT
    alarm_id,
    argMax(state, (a.occurred_at, event_id)) AS state,
    min(a.occurred_at) AS raised_at,
    max(a.occurred_at) AS changed_at,
    any(kind) AS kind,
    any(environment) AS environment,
    any(agent) AS agent,
    any(model) AS model,
    any(split) AS split,
    any(reward_spec) AS reward_spec,
    any(rising) AS rising,
    any(falling) AS falling,
    any(rising_before) AS rising_before,
    any(rising_after) AS rising_after,
    any(falling_before) AS falling_before,
    any(falling_after) AS falling_after,
    any(trajectories_before) AS trajectories_before,
    any(trajectories_after) AS trajectories_after,
    any(p_value) AS p_value,
    any(threshold) AS threshold,
    any(baseline_version) AS baseline_version,
    any(since_version) AS since_version,
    any(until_version) AS until_version,
    any(message) AS message
FROM alarms AS a
GROUP BY alarm_id;
