-- An attempt cut off by a limit without any outcome is a failure, also by hour: earlier releases left it out of the rates.
ALTER TABLE trajectory_hours COMMENT COLUMN outcomes 'Those with an outcome; one cut off by a limit without any is a failure.';
ALTER TABLE trajectory_hours COMMENT COLUMN truncated 'Those cut off by a limit of steps, time or tokens, whatever their outcome.';

-- The refresh of the earlier release must not take the marks; the new one is created after the migrations.
DROP VIEW IF EXISTS trajectory_hours_refresh SYNC;

-- All hours that have facts are due: those whose facts a retention has deleted keep their earlier sums.
INSERT INTO dirty_hours (of, hour, at)
SELECT 'trajectories' AS of, toStartOfHour(toDateTime(opened_at, 'UTC')) AS hour, now64(6, 'UTC') AS at
FROM trajectories GROUP BY hour;
