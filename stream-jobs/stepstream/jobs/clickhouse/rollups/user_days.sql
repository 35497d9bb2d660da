-- Trajectories of each person by the day on which they opened; see ../rollup_refresh.py.
WITH
(
$due
) AS due
SELECT day, tenant, user_key, sum(real) AS trajectories, sum(succeeded) AS successes, $now AS version
FROM
(
    SELECT toDate(opened_at) AS day, tenant, sipHash64(user) AS user_key, 1 AS real, ifNull(success, false) AS succeeded
    FROM trajectories FINAL
    WHERE user != '' AND toStartOfHour(opened_at) IN
            (SELECT toDateTime(arrayJoin(due), 'UTC') + INTERVAL arrayJoin(range(24)) HOUR)
    UNION ALL
    SELECT day, tenant, user_key, 0 AS real, 0 AS succeeded
    FROM user_days FINAL WHERE has(due, day)
    UNION ALL
    SELECT arrayJoin(due) AS day, '' AS tenant, toUInt64(0) AS user_key, 0 AS real, 0 AS succeeded
)
GROUP BY day, tenant, user_key
