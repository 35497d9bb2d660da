-- Cohorts whose stored rows count, as (digest, version): all of their attempts lie in the range, and none has changed
    -- since. All others have their hours before the second value or from the third.
    WITH
        toStartOfHour({since:DateTime('UTC')} + INTERVAL 3599 SECOND) AS since_hour,
        toStartOfHour({until:DateTime('UTC')}) AS until_hour
    SELECT
        groupArrayIf((cohort_digest, version), is_stored),
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
