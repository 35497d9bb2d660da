UNION ALL
            SELECT '', cohort_digest, toDateTime(4294967295, 'UTC'), toDateTime(0, 'UTC'), changed, toDateTime64(0, 6, 'UTC')
            FROM cohort_signals
            WHERE name IN ('', $signal_names)
