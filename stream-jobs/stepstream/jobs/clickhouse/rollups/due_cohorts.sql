-- Cohorts at rest whose rows of a view are not stored, with the range of their hours; see ../materialized_views.py.
    SELECT groupArray(id), toDateTime(min(first), 'UTC'), toDateTime(max(last) + INTERVAL 1 HOUR, 'UTC')
    FROM
    (
        SELECT (tenant, cohort_digest) AS id, first, last
        FROM
        (
            SELECT any(tenant) AS tenant, cohort_digest, min(first) AS first, max(last) AS last, max(changed) AS changed
            FROM cohort_times
            GROUP BY cohort_digest
        ) AS times
        LEFT JOIN
        (
            SELECT cohort_digest, max(version) AS version
            FROM materialized_cohorts
            WHERE view = '$view'
            GROUP BY cohort_digest
        ) AS stored USING (cohort_digest)
        WHERE version <= changed + INTERVAL 1 MINUTE
            AND changed < $now - toIntervalSecond($rest_s * greatest(1, dateDiff('second', first, last) / 30000))
            AND last < toStartOfHour($now) AND first >= $complete_since
        ORDER BY last DESC
        LIMIT 1000
    )
