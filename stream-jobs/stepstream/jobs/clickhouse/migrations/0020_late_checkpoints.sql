-- A checkpoint that comes late changes the lag of trajectories that ended after it: their hours are due again. One that
-- comes within 30 s needs no mark, because an hour is recomputed for 60 s after its last change.
CREATE MATERIALIZED VIEW IF NOT EXISTS checkpoints_dirty TO dirty_hours AS
SELECT 'trajectories' AS of, d.hour AS hour, now64(6, 'UTC') AS at
FROM (SELECT min(occurred_at) AS first FROM checkpoints) AS c
CROSS JOIN (SELECT DISTINCT hour FROM dirty_hours WHERE of = 'trajectories') AS d
WHERE c.first < now64(6, 'UTC') - INTERVAL 30 SECOND AND d.hour >= c.first - INTERVAL 1 DAY;
