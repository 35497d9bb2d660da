-- The days of which an hour of trajectory_hours has been computed since, as an array; see ../rollup_refresh.py. A day stays
-- due for a minute: those computed longest ago come first, or in a replay the newest would keep all others waiting.
    SELECT groupArray(day)
    FROM
    (
        SELECT day
        FROM
        (
            SELECT toDate(hour) AS day, max(version) AS changed FROM trajectory_hours
            WHERE hour IN (SELECT hour FROM dirty_hours WHERE of = 'trajectories') GROUP BY day
        ) AS hours
        LEFT JOIN
        (
            SELECT day, max(version) AS done FROM trajectory_days
            WHERE day IN (SELECT toDate(hour) FROM dirty_hours WHERE of = 'trajectories') GROUP BY day
        ) AS days USING (day)
        WHERE changed > done - INTERVAL 60 SECOND
        ORDER BY done, day DESC
        LIMIT $most
    )
