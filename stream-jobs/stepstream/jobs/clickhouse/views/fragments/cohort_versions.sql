-- A cohort without times, whose feedback came before its attempts, is none yet: its first hour is after its last.
        SELECT max(tenant) AS tenant, cohort_digest, min(first) AS first, max(last) AS last, max(changed) AS changed,
            max(version) AS version
        FROM
        (
            SELECT tenant, cohort_digest, first, last, changed, toDateTime64(0, 6, 'UTC') AS version
            FROM cohort_times
            UNION ALL
            SELECT '', cohort_digest, toDateTime(4294967295, 'UTC'), toDateTime(0, 'UTC'), toDateTime64(0, 6, 'UTC'), version
            FROM materialized_cohorts
            WHERE view = '$view'$signals
        )
        GROUP BY cohort_digest
        HAVING first <= last
