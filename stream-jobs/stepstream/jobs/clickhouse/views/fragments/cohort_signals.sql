LEFT JOIN
        (
            SELECT cohort_digest, max(changed) AS signalled
            FROM cohort_signals
            WHERE name IN ('', $signal_names)
            GROUP BY cohort_digest
        ) AS signals USING (cohort_digest)
