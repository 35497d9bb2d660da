WITH
    (values, counts, q) -> values[arrayFirstIndex(reached -> reached >= q * arraySum(counts), arrayCumSum(counts))]
        AS quantile_of_counts
SELECT
    $by,
    sumMap(h.lag.versions, h.lag.trajectories) AS lags,
    arraySum(lags.2) AS trajectories,
    if(trajectories = 0, NULL, arraySum((v, n) -> v * n, lags.1, lags.2) / trajectories) AS mean,
    if(trajectories = 0, NULL, quantile_of_counts(lags.1, lags.2, 0.5)) AS p50,
    if(trajectories = 0, NULL, quantile_of_counts(lags.1, lags.2, 0.95)) AS p95,
    if(trajectories = 0, NULL, arrayMax(lags.1)) AS largest,
    if(trajectories = 0, 'no trajectory names its version', '') AS reason
FROM
(
    $trajectory_hours
) AS h
GROUP BY $by
HAVING sum(h.trajectories) > 0
