-- Cohorts of the trajectories about which feedback came since the last refresh, or up to 60 s before it, since rows may
-- become visible after their mark. Feedback that comes before its trajectory is found with it: then the cohort changes.
WITH
    (SELECT max(changed) FROM cohort_signals WHERE tenant = '') AS done,
    marks AS
    (
        SELECT DISTINCT tenant, trajectory_key, name
        FROM feedback_marks
        WHERE at > done - INTERVAL 60 SECOND AND name IN ('', $signal_names)
    )
SELECT tenant, cohort_digest, name, $now AS changed
FROM
(
    SELECT tenant, sipHash64(trajectory_id) AS trajectory_key, cohort_digest
    FROM trajectories
    WHERE (tenant, toStartOfHour(opened_at)) IN
        (
            SELECT tenant, arrayJoin(timeSlots(toStartOfHour(toDateTime(min(first))),
                toUInt32(3600 + greatest(0, dateDiff('second', min(first), max(last)))), 3600)) AS hour
            FROM trajectory_times
            WHERE trajectory_key IN (SELECT trajectory_key FROM marks)
            GROUP BY tenant, trajectory_key
        )
        AND sipHash64(trajectory_id) IN (SELECT trajectory_key FROM marks)
) AS found
INNER JOIN marks USING (tenant, trajectory_key)
GROUP BY tenant, cohort_digest, name
UNION ALL
SELECT '' AS tenant, toUInt128(0) AS cohort_digest, '' AS name, $now AS changed
