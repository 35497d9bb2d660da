SELECT
        *,
        cohort_digest,
        failed_tool,
        failed_error,
        version_max AS policy_version,
        toStartOfHour(opened_at) AS hour,
        toDate(opened_at) AS day,
        substring(task_id, 1, length(task_id) - multiSearchFirstPosition(reverse(task_id), ['/', ':', '#'])) AS task_family,
        -- NULL: the attempt was lost, or is not judged yet; see clickhouse/outcome.py.
        $outcome AS outcome
    FROM trajectories FINAL
    WHERE opened_at >= {since:DateTime('UTC')} AND opened_at < {until:DateTime('UTC')} $of_times $of_cohorts
