SELECT
        *,
        -- Else the hour is of the 7 days before, the baseline.
        hour >= {since:DateTime('UTC')} AS is_window
    FROM tool_hours
    WHERE hour >= {since:DateTime('UTC')} - INTERVAL 7 DAY AND hour < {until:DateTime('UTC')} AND calls > 0
        -- A refresh writes all rows of an hour, with one version: no FINAL, as in attempts.sql.
        AND (hour, version) IN
        (
            SELECT hour, max(version) FROM tool_hours
            WHERE hour >= {since:DateTime('UTC')} - INTERVAL 7 DAY AND hour < {until:DateTime('UTC')}
            GROUP BY hour
        )
