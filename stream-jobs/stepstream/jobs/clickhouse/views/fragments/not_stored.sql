-- Cohorts of which no stored row counts: the range cuts them, or an attempt has changed since. All of their attempts are
    -- before the second value or from the third. These are few; one thread is faster for the few rows that this reads.
    WITH
        toStartOfHour({since:DateTime('UTC')} + INTERVAL 3599 SECOND) AS since_hour,
        toStartOfHour({until:DateTime('UTC')}) AS until_hour
    SELECT
        groupArrayIf(cohort_digest, NOT is_stored),
        greatest(maxIf(last, NOT is_stored AND first < since_hour) + INTERVAL 1 HOUR, since_hour),
        least(ifNull(minOrNullIf(first, NOT is_stored AND first >= since_hour), until_hour), until_hour)
    FROM
    (
        SELECT
            *,
            -- The refresh that wrote them, and one of task_hours that began before it, have ended for sure.
            version > changed + INTERVAL 1 MINUTE AND version < now64(6, 'UTC') - INTERVAL 5 MINUTE
                AND first >= since_hour AND last < until_hour AS is_stored
        FROM
        (
            $cohort_versions
        )
    )
    WHERE last >= toStartOfHour({since:DateTime('UTC')}) AND first < {until:DateTime('UTC')}
    SETTINGS max_threads = 1
