WITH
    -- Hours of the harness versions that count: most fleets have none, and their attempts need not be read.
    (
        SELECT (min(first), max(last))
        FROM cohort_times
        WHERE cohort_digest IN
        (
            SELECT cohort_digest FROM cohorts WHERE length(extractKeyValuePairs(toString(harness_version), '=', ';')) = 2
        )
    ) AS of_modules
SELECT
    $by,
    module_a,
    module_b,
    uniqExact(a) AS prompts_a,
    uniqExact(b) AS prompts_b,
    uniqExact(task_id) AS questions,
    (prompts_a - 1) * (prompts_b - 1) AS df_interaction,
    (prompts_a * prompts_b - 1) * (questions - 1) AS df_residual,
    sum(pow(mean_a - mean_all, 2)) AS ss_a,
    sum(pow(mean_b - mean_all, 2)) AS ss_b,
    sum(pow(mean_q - mean_all, 2)) AS ss_q,
    sum(pow(mean_ab - mean_a - mean_b + mean_all, 2)) AS ss_ab,
    sum(pow(y - mean_all, 2)) AS ss_total,
    if(ss_total = 0, NULL, ss_a / ss_total) AS share_a,
    if(ss_total = 0, NULL, ss_b / ss_total) AS share_b,
    if(ss_total = 0, NULL, ss_q / ss_total) AS share_questions,
    if(ss_total = 0, NULL, ss_ab / ss_total) AS share_interaction,
    greatest(0., ss_total - ss_a - ss_b - ss_q - ss_ab) AS ss_residual,
    if(df_interaction = 0 OR df_residual = 0 OR ss_residual <= 1e-12 * ss_total, NULL,
        ss_ab / df_interaction / (ss_residual / df_residual)) AS f,
    max(mean_ab) - min(mean_ab) AS range_of_combinations,
    multiIf(df_interaction = 0, 'a module has one prompt', df_residual = 0, 'one question',
        f IS NULL, 'nothing varies beside the main effects', '') AS reason
FROM
(
    SELECT
        *,
        avg(y) OVER (PARTITION BY $by, module_a, module_b) AS mean_all,
        avg(y) OVER (PARTITION BY $by, module_a, module_b, a) AS mean_a,
        avg(y) OVER (PARTITION BY $by, module_a, module_b, b) AS mean_b,
        avg(y) OVER (PARTITION BY $by, module_a, module_b, task_id) AS mean_q,
        avg(y) OVER (PARTITION BY $by, module_a, module_b, a, b) AS mean_ab
    FROM
    (
        SELECT
            *,
            count() OVER (PARTITION BY $by, module_a, module_b, task_id) AS answered,
            max(cells) OVER (PARTITION BY $by, module_a, module_b) AS needed
        FROM
        (
            SELECT
                $by, module_a, module_b, a, b, task_id, y,
                uniqExact(a, b) OVER (PARTITION BY $by, module_a, module_b) AS cells
            FROM
            (
                SELECT
                    $by,
                    task_id,
                    extractKeyValuePairs(toString(t.harness_version), '=', ';') AS modules,
                    mapKeys(mapSort(modules))[1] AS module_a,
                    mapKeys(mapSort(modules))[2] AS module_b,
                    modules[module_a] AS a,
                    modules[module_b] AS b,
                    avg(assumeNotNull(t.outcome)) AS y
                FROM
                (
                    $trajectories
                ) AS t
                WHERE t.outcome IS NOT NULL
                    AND length(extractKeyValuePairs(toString(t.harness_version), '=', ';')) = 2
                    AND t.hour >= of_modules.1 AND t.hour <= of_modules.2
                GROUP BY $by, task_id, modules
            )
        )
    )
    WHERE answered = needed
)
GROUP BY $by, module_a, module_b
