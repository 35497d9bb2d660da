-- The views of earlier releases, over the tables of 0016. An event has one row, of the newest policy.

CREATE OR REPLACE VIEW success_by_policy_version AS
WITH 1.959963984540054 AS z
SELECT
    model,
    split,
    version_max AS policy_version,
    count() AS trajectories,
    countIf(success IS NOT NULL) AS outcomes,
    countIf(success) AS successes,
    successes / outcomes AS success_rate,
    greatest(0., (success_rate + z * z / (2 * outcomes)
        - z * sqrt(success_rate * (1 - success_rate) / outcomes + z * z / (4 * outcomes * outcomes)))
        / (1 + z * z / outcomes)) AS wilson_low,
    least(1., (success_rate + z * z / (2 * outcomes)
        + z * sqrt(success_rate * (1 - success_rate) / outcomes + z * z / (4 * outcomes * outcomes)))
        / (1 + z * z / outcomes)) AS wilson_high,
    max(ended_at) AS newest
FROM trajectories FINAL
WHERE version_max >= 0
GROUP BY model, split, policy_version
HAVING outcomes > 0;

DROP VIEW IF EXISTS current_steps;
DROP VIEW IF EXISTS current_feedback;
DROP VIEW IF EXISTS steps_per_second;

CREATE OR REPLACE VIEW feedback_counts AS
SELECT
    name,
    source,
    count() AS events,
    avg(value) AS mean,
    max(occurred_at) AS newest
FROM feedback FINAL
WHERE retracts = ''
    AND (toString(tenant), source_event_id) NOT IN
        (SELECT toString(tenant), retracts FROM feedback WHERE retracts != '')
GROUP BY name, source;

CREATE OR REPLACE VIEW trajectory_staleness AS
SELECT
    t.tenant AS tenant,
    t.trajectory_id AS trajectory_id,
    t.model AS model,
    t.split AS split,
    t.ended_at AS ended_at,
    t.version_min AS version_min,
    c.version AS newest_version,
    greatest(0, c.version - t.version_min) AS staleness
FROM (SELECT * FROM trajectories FINAL WHERE version_min >= 0) AS t
ASOF INNER JOIN (SELECT model, version, occurred_at FROM checkpoints FINAL) AS c
    ON t.model = c.model AND t.ended_at >= c.occurred_at;

-- The components of each trajectory's newest label, a row each.
CREATE OR REPLACE VIEW current_reward_components AS
SELECT
    tenant,
    trajectory_id,
    revision,
    label_id,
    c.step AS step_index,
    c.name AS name,
    c.kind AS kind,
    c.source AS source,
    c.value AS value,
    c.raw AS raw_value,
    c.weight AS weight,
    c.final AS final,
    reward_spec,
    reward_spec_version,
    environment,
    agent,
    model,
    version_max AS policy_version,
    split,
    opened_at,
    ended_at
FROM (SELECT * FROM trajectories FINAL)
ARRAY JOIN component AS c;

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

CREATE OR REPLACE VIEW step_consents AS
WITH ['none', 'analyse', 'train'] AS levels
SELECT
    s.source_key AS source_key,
    s.trajectory_id AS trajectory_id,
    s.step_index AS step_index,
    s.tenant AS tenant,
    s.agent AS agent,
    levels[arrayMin(arrayFilter(level -> level > 0, [
        indexOf(levels, s.consent), indexOf(levels, t.consent), indexOf(levels, u.consent),
        indexOf(levels, a.consent), indexOf(levels, b.consent)
    ]))] AS consent
FROM (SELECT * FROM steps FINAL) AS s
LEFT ANY JOIN (SELECT tenant, consent FROM consents FINAL WHERE user IS NULL AND agent IS NULL) AS t
    ON t.tenant = s.tenant
LEFT ANY JOIN (SELECT tenant, user, consent FROM consents FINAL WHERE user IS NOT NULL AND agent IS NULL) AS u
    ON u.tenant = s.tenant AND u.user = s.user
LEFT ANY JOIN (SELECT tenant, agent, consent FROM consents FINAL WHERE user IS NULL AND agent IS NOT NULL) AS a
    ON a.tenant = s.tenant AND a.agent = s.agent
LEFT ANY JOIN (SELECT tenant, user, agent, consent FROM consents FINAL WHERE user IS NOT NULL AND agent IS NOT NULL) AS b
    ON b.tenant = s.tenant AND b.user = s.user AND b.agent = s.agent;

-- What is held now, and why; with the newest decision of a person or job about it.
CREATE OR REPLACE VIEW quarantine AS
WITH decisions AS
(
    SELECT
        toString(tenant) AS of_tenant,
        trajectory_id,
        argMax(by, (occurred_at, event_id)) AS decided_by,
        toNullable(max(occurred_at)) AS at
    FROM curation
    GROUP BY of_tenant, trajectory_id
)
SELECT
    t.trajectory_id AS trajectory_id,
    t.tenant AS tenant,
    t.agent AS agent,
    t.group_id AS group_id,
    t.ended_at AS ended_at,
    t.success AS success,
    t.steps AS steps,
    t.revision AS revision,
    arrayMap(flag -> substring(flag, 6), arrayFilter(flag -> startsWith(flag, 'held:'), t.flags)) AS reasons,
    if(c.at IS NULL, e.decided_by, c.decided_by) AS by,
    if(c.at IS NULL, e.at, c.at) AS decided_at
FROM (SELECT * FROM trajectories FINAL WHERE arrayExists(flag -> startsWith(flag, 'held:'), flags)) AS t
LEFT ANY JOIN decisions AS c ON c.of_tenant = toString(t.tenant) AND c.trajectory_id = t.trajectory_id
LEFT ANY JOIN (SELECT * FROM decisions WHERE of_tenant = '') AS e ON e.trajectory_id = t.trajectory_id;

CREATE OR REPLACE VIEW quality_counts AS
SELECT
    tenant,
    agent,
    substring(flag, 9) AS reason,
    count() AS trajectories,
    countIf(has(flags, concat('held:', flag))) AS held
FROM (SELECT tenant, agent, flags FROM trajectories FINAL)
ARRAY JOIN arrayFilter(flag -> startsWith(flag, 'quality:'), flags) AS flag
GROUP BY tenant, agent, reason;

CREATE OR REPLACE VIEW audit_counts AS
SELECT tenant, policy_version, action, rule, uniqExact(event_id) AS records, sum(times) AS finds
FROM (SELECT * FROM governance_audit FINAL)
ARRAY JOIN mapKeys(found) AS rule, mapValues(found) AS times
GROUP BY tenant, policy_version, action, rule;

CREATE OR REPLACE VIEW training_outcomes AS
SELECT model, root, tenant, outcome, reason, count() AS trajectories
FROM
(
    SELECT
        model,
        root,
        tenant,
        trajectory_id,
        argMax(d.outcome, (d.outcome = 'trained', d.revision, d.occurred_at)) AS outcome,
        argMax(d.reason, (d.outcome = 'trained', d.revision, d.occurred_at)) AS reason
    FROM (SELECT * FROM training_decisions FINAL) AS d
    GROUP BY model, root, tenant, trajectory_id
)
GROUP BY model, root, tenant, outcome, reason;
