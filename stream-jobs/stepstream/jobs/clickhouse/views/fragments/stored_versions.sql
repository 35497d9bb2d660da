SELECT cohort_digest, max(version)
        FROM materialized_cohorts
        WHERE view = '$view' AND version < now64(6, 'UTC') - INTERVAL 5 MINUTE
        GROUP BY cohort_digest
        HAVING argMax(first_hour, version) >= toStartOfHour({since:DateTime('UTC')} + INTERVAL 3599 SECOND)
            AND argMax(last_hour, version) < toStartOfHour({until:DateTime('UTC')})
