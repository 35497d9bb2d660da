SELECT
        *,
        toDate(hour) AS day
    FROM
    (
        SELECT
            hour, tenant, agent, model, environment, harness_version, policy_version, track, split, task_id, task_family,
            task_key, group_key, cohort_digest, trajectories, outcomes, successes, steps,
            length.steps AS lengths, length.outcomes AS ended, length.failures AS failed
        FROM task_hours
        WHERE hour >= toStartOfHour({since:DateTime('UTC')} + INTERVAL 3599 SECOND)
            AND hour < toStartOfHour({until:DateTime('UTC')}) AND trajectories > 0 $of_hours $of_cohorts
            -- A refresh writes all rows of an hour, with one version: no FINAL, which compares eleven columns of each row.
            AND (hour, version) IN
            (
                SELECT hour, max(version) FROM task_hours
                WHERE hour >= toStartOfHour({since:DateTime('UTC')} + INTERVAL 3599 SECOND)
                    AND hour < toStartOfHour({until:DateTime('UTC')}) $of_hours
                GROUP BY hour
            )
        UNION ALL
        -- The hours of which the range has a part.
        SELECT
            toStartOfHour(toDateTime(opened_at, 'UTC')) AS hour, tenant, agent, model, environment, harness_version,
            version_max AS policy_version, track, split, task_id, toLowCardinality(task_family) AS task_family,
            sipHash64(task_id) AS task_key, if(group_id = '', 0, sipHash64(group_id)) AS group_key, cohort_digest,
            1 AS trajectories, outcome IS NOT NULL AS outcomes, ifNull(outcome, false) AS successes, if(outcomes, steps, 0) AS steps,
            if(outcomes, [steps], []) AS lengths, if(outcomes, [toUInt64(1)], []) AS ended,
            if(outcomes, [toUInt64(NOT successes)], []) AS failed
        FROM
        (
            $trajectories
        )
        WHERE opened_at < toStartOfHour({since:DateTime('UTC')} + INTERVAL 3599 SECOND)
            OR opened_at >= toStartOfHour({until:DateTime('UTC')})
    )
