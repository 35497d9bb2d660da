-- A trajectory is identified by tenant and id, an event by tenant and event id (docs/decisions/identity.md). `engines.py`
-- gives the tables of trajectories keys that begin with the tenant, and fills the tenant of the rows that lack it.

ALTER TABLE closures ADD COLUMN IF NOT EXISTS tenant LowCardinality(String) DEFAULT '' COMMENT 'Empty: an earlier release decided, which named no tenant.';
ALTER TABLE curation ADD COLUMN IF NOT EXISTS tenant LowCardinality(String) DEFAULT '' COMMENT 'As in closures.';
ALTER TABLE trajectory_steps ADD COLUMN IF NOT EXISTS tenant LowCardinality(String) DEFAULT '';
ALTER TABLE trajectory_stats ADD COLUMN IF NOT EXISTS tenant LowCardinality(Nullable(String)) COMMENT 'Tenant of scope trajectory; NULL: a cohort, or a row of an earlier release.';

CREATE OR REPLACE VIEW current_steps AS
SELECT * FROM steps FINAL ORDER BY policy_version DESC, event_id DESC LIMIT 1 BY tenant, source_event_id;

CREATE OR REPLACE VIEW current_feedback AS
SELECT * FROM feedback FINAL ORDER BY policy_version DESC, event_id DESC LIMIT 1 BY tenant, source_event_id;

CREATE OR REPLACE VIEW steps_per_second AS
SELECT
    toStartOfSecond(occurred_at) AS second,
    uniqExact(tenant, source_event_id) AS steps
FROM steps
GROUP BY second;

-- Feedback that counts: without retractions and what they take back.
CREATE OR REPLACE VIEW feedback_counts AS
SELECT
    name,
    source,
    count() AS events,
    avg(value) AS mean,
    max(occurred_at) AS newest
FROM current_feedback
WHERE retracts IS NULL
    AND (toString(tenant), source_event_id) NOT IN
        (SELECT toString(tenant), assumeNotNull(retracts) FROM feedback WHERE retracts IS NOT NULL)
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
    greatest(0, c.version - assumeNotNull(t.version_min)) AS staleness
FROM (SELECT * FROM trajectories FINAL WHERE version_min IS NOT NULL) AS t
ASOF INNER JOIN (SELECT model, version, occurred_at FROM checkpoints FINAL) AS c
    ON t.model = c.model AND t.ended_at >= c.occurred_at;

-- The components of each trajectory's newest label.
CREATE OR REPLACE VIEW current_reward_components AS
SELECT *
FROM reward_components FINAL
WHERE (toString(tenant), trajectory_id, label_id) IN
    (SELECT toString(tenant), trajectory_id, event_id FROM trajectories FINAL);

CREATE OR REPLACE VIEW step_consents AS
WITH ['none', 'analyse', 'train'] AS levels
SELECT
    s.event_id AS event_id,
    s.trajectory_id AS trajectory_id,
    s.step_index AS step_index,
    s.tenant AS tenant,
    s.agent AS agent,
    levels[arrayMin(arrayFilter(level -> level > 0, [
        indexOf(levels, s.consent), indexOf(levels, t.consent), indexOf(levels, u.consent),
        indexOf(levels, a.consent), indexOf(levels, b.consent)
    ]))] AS consent
FROM (SELECT * FROM steps FINAL ORDER BY policy_version DESC LIMIT 1 BY tenant, source_event_id) AS s
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
