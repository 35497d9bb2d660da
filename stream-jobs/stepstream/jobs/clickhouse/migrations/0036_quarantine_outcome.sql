-- `end` and `pending` say whether a trajectory without `success` is a time-out, which counts as a failure.
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
    t.end AS end,
    t.pending AS pending,
    t.steps AS steps,
    t.revision AS revision,
    arrayMap(flag -> substring(flag, 6), arrayFilter(flag -> startsWith(flag, 'held:'), t.flags)) AS reasons,
    if(c.at IS NULL, e.decided_by, c.decided_by) AS by,
    if(c.at IS NULL, e.at, c.at) AS decided_at
FROM
(
    SELECT * FROM trajectories FINAL
    WHERE arrayExists(flag -> startsWith(flag, 'held:'), flags)
        AND (tenant, toStartOfHour(opened_at), trajectory_id) IN
        (
            SELECT tenant, toStartOfHour(opened_at), trajectory_id FROM trajectories
            WHERE arrayExists(flag -> startsWith(flag, 'held:'), flags)
        )
) AS t
LEFT ANY JOIN decisions AS c ON c.of_tenant = toString(t.tenant) AND c.trajectory_id = t.trajectory_id
LEFT ANY JOIN (SELECT * FROM decisions WHERE of_tenant = '') AS e ON e.trajectory_id = t.trajectory_id;
