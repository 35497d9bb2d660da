SELECT tenant, cohort_digest, first, last, $changed AS changed, version
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
        ) AS stored USING (cohort_digest)$signals_of
