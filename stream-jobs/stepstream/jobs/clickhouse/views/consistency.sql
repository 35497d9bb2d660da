WITH
    (p, q) -> if(p = 0, 0., p / 2 * log2(2 * p / (p + q))) + if(q = 0, 0., q / 2 * log2(2 * q / (p + q))) AS divergence_term,
    (a, b) -> multiIf(empty(a) AND empty(b), 0., empty(a) OR empty(b), 1., arraySum(
        tool -> divergence_term(countEqual(a, tool) / length(a), countEqual(b, tool) / length(b)),
        arrayDistinct(arrayConcat(a, b)))) AS divergence_of,
    (a, b) -> if(empty(a) AND empty(b), 0., arrayLevenshteinDistance(a, b) / greatest(length(a), length(b))) AS edits_of,
    (deviation, mean) -> if(isNaN(deviation) OR mean = 0, NULL, deviation / mean) AS variation_of
SELECT
    $by,
    count() AS tasks,
    sum(n) AS runs,
    avg(pow(2 * c / n - 1, 2)) AS c_out,
    avg(1 - 4 * c * (n - c) / (n * (n - 1))) AS c_out_unbiased,
    if(countIf(length(paths) > 1) = 0, NULL, avgIf(1 - arrayAvg(pairs.1), length(paths) > 1)) AS c_traj_d,
    if(countIf(length(paths) > 1) = 0, NULL, avgIf(1 - arrayAvg(pairs.2), length(paths) > 1)) AS c_traj_s,
    avg(if(empty(variations), NULL, exp(-arrayAvg(variations)))) AS c_res,
    (c_out + (c_traj_d + c_traj_s) / 2 + c_res) / 3 AS consistency,
    if(consistency IS NULL, 'no task has two successful runs, or no run has a cost, time or calls', '') AS reason
FROM
(
    SELECT
        $by,
        task_id,
        toInt64(count()) AS n,
        toInt64(countIf(t.outcome)) AS c,
        arrayMap(run -> run.2, groupArraySortedIf(50)(
            (t.trajectory_id, CAST(t.call.tool, 'Array(String)')), assumeNotNull(t.outcome))) AS paths,
        arrayFlatten(arrayMap(i -> arrayMap(
            j -> (divergence_of(paths[i], paths[j]), edits_of(paths[i], paths[j])),
            range(i + 1, length(paths) + 1)), range(1, length(paths) + 1))) AS pairs,
        arrayMap(v -> assumeNotNull(v), arrayFilter(v -> v IS NOT NULL, [
            variation_of(ifNull(stddevSamp(toFloat64(t.cost_usd)), nan), ifNull(avg(toFloat64(t.cost_usd)), 0)),
            variation_of(stddevSamp(dateDiff('millisecond', t.started_at, t.ended_at)),
                avg(dateDiff('millisecond', t.started_at, t.ended_at))),
            variation_of(stddevSamp(length(t.call.tool)), avg(length(t.call.tool)))])) AS variations
    FROM
    (
        $trajectories
    ) AS t
    LEFT ANTI JOIN
    (
        SELECT tenant AS of_tenant, trajectory_id AS of_trajectory, max(category) AS kind
        FROM
        (
            $signals
        )
        GROUP BY of_tenant, of_trajectory
    ) AS s ON s.of_tenant = t.tenant AND s.of_trajectory = t.trajectory_id
    WHERE t.outcome IS NOT NULL
    GROUP BY $by, task_id
    HAVING n >= 2
)
GROUP BY $by
