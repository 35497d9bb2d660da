-- Cohorts at rest whose rows of a view are not stored, with the range of their hours; see ../materialized_views.py.
    SELECT groupArray(id), toDateTime(min(first), 'UTC'), toDateTime(max(last) + INTERVAL 1 HOUR, 'UTC')
    FROM
    (
        SELECT (tenant, cohort_digest, first, last) AS id, first, last
        FROM
        (
            $versions
        )
        WHERE version <= changed + INTERVAL 1 MINUTE
            AND changed < $now - toIntervalSecond($rest_s * greatest(1, dateDiff('second', first, last) / 30000))
            AND last < toStartOfHour($now) AND first >= $complete_since
        ORDER BY last DESC
        LIMIT 2000
    )
