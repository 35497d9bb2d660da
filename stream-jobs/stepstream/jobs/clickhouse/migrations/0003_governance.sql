-- What governance decides and finds, and what an erasure needs: whose a trajectory is, and old parts that go soon.

ALTER TABLE steps ADD COLUMN IF NOT EXISTS policy_version Int32 DEFAULT 0 COMMENT 'Version of the policy that it was governed under; of two rows of one source event, the higher counts.';
ALTER TABLE feedback ADD COLUMN IF NOT EXISTS policy_version Int32 DEFAULT 0 COMMENT 'As in steps.';
ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS user Nullable(String) AFTER tenant;

-- ClickHouse keeps what a mutation replaced for eight minutes by default; what is erased is to be gone from disk soon.
ALTER TABLE steps MODIFY SETTING old_parts_lifetime = 60;
ALTER TABLE feedback MODIFY SETTING old_parts_lifetime = 60;
ALTER TABLE trajectories MODIFY SETTING old_parts_lifetime = 60;
ALTER TABLE trajectory_steps MODIFY SETTING old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS curation
(
    event_id String,
    trajectory_id String,
    occurred_at DateTime64(6, 'UTC'),
    action LowCardinality(String),
    reason String,
    by LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS governance_audit
(
    event_id String,
    trajectory_id String,
    occurred_at DateTime64(6, 'UTC'),
    source_topic LowCardinality(String),
    source_event_id String,
    tenant LowCardinality(String),
    policy_version Int32,
    action LowCardinality(String),
    found Map(LowCardinality(String), Int32),
    job LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS policies
(
    event_id String,
    tenant LowCardinality(String),
    version Int32,
    occurred_at DateTime64(6, 'UTC'),
    document String,
    author LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (tenant, version)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS consents
(
    event_id String,
    key String COMMENT 'tenant/user/agent, `*` for all.',
    tenant LowCardinality(String),
    user Nullable(String),
    agent Nullable(String),
    consent LowCardinality(String),
    occurred_at DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(occurred_at)
ORDER BY key
SETTINGS non_replicated_deduplication_window = 1000, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS erasures
(
    event_id String,
    subject String,
    tenant LowCardinality(String),
    occurred_at DateTime64(6, 'UTC'),
    requested_by LowCardinality(String)
)
ENGINE = ReplacingMergeTree(occurred_at)
ORDER BY subject
SETTINGS non_replicated_deduplication_window = 1000;

-- Steps with the consent that holds for them now: their own, or a stricter one that was given since. Of the results of
-- one source event, the one under the newest policy counts. (Trajectories get a new revision instead.)
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
FROM (SELECT * FROM steps FINAL ORDER BY policy_version DESC LIMIT 1 BY source_event_id) AS s
LEFT ANY JOIN (SELECT tenant, consent FROM consents FINAL WHERE user IS NULL AND agent IS NULL) AS t
    ON t.tenant = s.tenant
LEFT ANY JOIN (SELECT tenant, user, consent FROM consents FINAL WHERE user IS NOT NULL AND agent IS NULL) AS u
    ON u.tenant = s.tenant AND u.user = s.user
LEFT ANY JOIN (SELECT tenant, agent, consent FROM consents FINAL WHERE user IS NULL AND agent IS NOT NULL) AS a
    ON a.tenant = s.tenant AND a.agent = s.agent
LEFT ANY JOIN (SELECT tenant, user, agent, consent FROM consents FINAL WHERE user IS NOT NULL AND agent IS NOT NULL) AS b
    ON b.tenant = s.tenant AND b.user = s.user AND b.agent = s.agent;

CREATE OR REPLACE VIEW audit_counts AS
SELECT tenant, policy_version, action, rule, uniqExact(event_id) AS records, sum(times) AS finds
FROM (SELECT * FROM governance_audit FINAL)
ARRAY JOIN mapKeys(found) AS rule, mapValues(found) AS times
GROUP BY tenant, policy_version, action, rule;
