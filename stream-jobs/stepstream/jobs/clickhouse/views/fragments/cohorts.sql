-- The names of each key: few rows.
    SELECT
        tenant,
        cohort_key,
        toLowCardinality(any(t.agent)) AS agent,
        toLowCardinality(any(t.model)) AS model,
        toLowCardinality(any(t.environment)) AS environment,
        toLowCardinality(any(t.harness_version)) AS harness_version,
        any(t.policy_version) AS policy_version,
        toLowCardinality(any(t.track)) AS track,
        toLowCardinality(any(t.split)) AS split
    FROM
    (
        $attempts
    ) AS t
    GROUP BY tenant, cohort_key
