-- Statistics and alarms are of one tenant. Earlier releases summed over all tenants: their rows are those of `default`.
ALTER TABLE component_stats ADD COLUMN IF NOT EXISTS tenant LowCardinality(String) DEFAULT 'default';
ALTER TABLE alarms ADD COLUMN IF NOT EXISTS tenant LowCardinality(String) DEFAULT if(kind = 'engine_gap', '', 'default') COMMENT 'Empty: kind engine_gap, which is about a model of all tenants.';
ALTER TABLE trajectory_stats COMMENT COLUMN tenant 'NULL: a row of an earlier release, whose cohorts are over all tenants.';

CREATE OR REPLACE VIEW component_means AS
SELECT
    tenant,
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
GROUP BY tenant, environment, agent, model, split, reward_spec, policy_version, hour, kind, name, weight
HAVING trajectories > 0;

CREATE OR REPLACE VIEW alarms_now AS
SELECT
    alarm_id,
    argMax(state, (a.occurred_at, event_id)) AS state,
    min(a.occurred_at) AS raised_at,
    max(a.occurred_at) AS changed_at,
    any(tenant) AS tenant,
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
