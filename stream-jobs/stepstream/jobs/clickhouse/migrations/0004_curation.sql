-- Trajectories as trees, what is wrong with them, and what is held out of training.

ALTER TABLE steps ADD COLUMN IF NOT EXISTS prompt_shared_step Nullable(Int32) COMMENT 'Step whose context it continues where that is not the step before.';
ALTER TABLE trajectory_steps ADD COLUMN IF NOT EXISTS prompt_shared_step Nullable(Int32) COMMENT 'Step whose context it continues; NULL: it begins a conversation.';
ALTER TABLE trajectory_steps ADD COLUMN IF NOT EXISTS tool_calls UInt32 DEFAULT 0 COMMENT 'Tools that its response called.';
ALTER TABLE trajectory_steps ADD COLUMN IF NOT EXISTS tool_results UInt32 DEFAULT 0 COMMENT 'Of those, the ones whose result is known.';

-- What is held now, and why; with the newest word of a person or job about it.
CREATE OR REPLACE VIEW quarantine AS
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
    c.by AS by,
    c.decided_at AS decided_at
FROM (SELECT * FROM trajectories FINAL WHERE arrayExists(flag -> startsWith(flag, 'held:'), flags)) AS t
LEFT ANY JOIN
(
    SELECT trajectory_id, argMax(by, (occurred_at, event_id)) AS by, toNullable(max(occurred_at)) AS decided_at
    FROM curation
    GROUP BY trajectory_id
) AS c ON c.trajectory_id = t.trajectory_id;

-- How many trajectories have each flag of quality, and how many of those are held for it.
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
