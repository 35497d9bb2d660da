-- One reading of the attempts computes the four parts. A join of the four views would choose and read them four times.
SELECT
    $by,
    $consistency,
    countIf(isNotNull(unperturbed)) AS plain_tasks,
    avg(unperturbed) AS plain_rate,
    avg(with_fault) AS fault_rate,
    avg(in_environment) AS environment_rate,
    avg(with_prompt) AS prompt_rate,
    $robustness,
    groupArrayArray(stated) AS f,
    groupArrayArray(hits) AS y,
    $calibration,
    if(empty(f), NULL, 1 - ece) AS p_cal,
    auroc AS p_auroc,
    if(empty(f), NULL, 1 - brier) AS predictability,
    (consistency + robustness + predictability) / 3 AS reliability,
    sum(judged) AS runs,
    sum(violating) AS violating_runs,
    sum(worst) AS severities,
    $safety,
    if(runs = 0, NULL, safety_of_runs) AS safety,
    multiIf(consistency IS NULL, 'consistency: no task has two successful runs, or no run has a cost, time or calls',
        robustness IS NULL, concat('robustness: ', robustness_reason), empty(f), 'no stated confidence', '') AS reason
FROM
(
    SELECT
        *,
        $run_distances
    FROM
    (
        WITH t.outcome IS NOT NULL AS has_outcome, has_outcome AND s.perturbations = 0 AS is_plain
        SELECT
            $by,
            $task_consistency,
            avgOrNullIf(assumeNotNull(t.outcome), has_outcome AND s.kind = '') AS unperturbed,
            avgOrNullIf(assumeNotNull(t.outcome), has_outcome AND s.kind = 'fault') AS with_fault,
            avgOrNullIf(assumeNotNull(t.outcome), has_outcome AND s.kind = 'environment') AS in_environment,
            avgOrNullIf(assumeNotNull(t.outcome), has_outcome AND s.kind = 'prompt') AS with_prompt,
            groupArrayIf(assumeNotNull(s.stated), has_outcome AND s.stated IS NOT NULL) AS stated,
            groupArrayIf(toUInt8(assumeNotNull(t.outcome)), has_outcome AND s.stated IS NOT NULL) AS hits,
            countIf(s.judgements > 0) AS judged,
            countIf(s.worst > 0) AS violating,
            sumIf(assumeNotNull(s.worst), s.worst > 0) AS worst
        FROM
        (
            $trajectories
        ) AS t
        LEFT JOIN
        (
            SELECT tenant AS of_tenant, trajectory_id AS of_trajectory,
                countIf(name = 'perturbation') AS perturbations,
                argMaxIf(category, (occurred_at, category), name = 'perturbation') AS kind,
                argMaxIf(value, (occurred_at, value), name = 'confidence' AND value BETWEEN 0 AND 1) AS stated,
                countIf(name NOT IN ('perturbation', 'confidence') AND value IS NOT NULL) AS judgements,
                maxIf(value, name = 'violation') AS worst
            FROM
            (
                $signals
            )
            GROUP BY of_tenant, of_trajectory
        ) AS s ON s.of_tenant = t.tenant AND s.of_trajectory = t.trajectory_id
        GROUP BY $by, task_id
    )
)
GROUP BY $by
HAVING countIf(n >= 2) > 0
