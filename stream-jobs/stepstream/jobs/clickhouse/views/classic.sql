SELECT
    $by,
    e.tasks AS tasks,
    e.usd_per_task AS usd_per_task,
    e.p95_usd AS p95_usd,
    e.p50_s AS p50_s,
    e.p95_s AS p95_s,
    e.p99_s AS p99_s,
    if(empty(f.quantiles_ms), NULL, f.quantiles_ms[1]) AS first_token_p50_ms,
    if(empty(f.quantiles_ms), NULL, f.quantiles_ms[2]) AS first_token_p95_ms,
    if(empty(f.quantiles_ms), NULL, f.quantiles_ms[3]) AS first_token_p99_ms,
    e.accuracy AS accuracy,
    e.policy_adherence AS policy_adherence,
    e.attacks_resisted AS attacks_resisted,
    if(e.steps = 0, NULL, e.step_errors / e.steps) AS error_rate,
    multiIf(e.usd_per_task IS NULL, 'attempts without a cost: fill gateway.prices', e.accuracy IS NULL,
        'no attempt has an outcome', e.policy_adherence IS NULL, 'nobody counted policy-critical actions',
        e.attacks_resisted IS NULL, 'no planted attack', '') AS reason
FROM
(
    $view_efficiency
) AS e
LEFT JOIN
(
    -- Bins have whole numbers: their exact quantiles take a third of the time of sumMap.
    SELECT
        $by,
        arrayMap(bin -> exp((bin + 0.5) * ln(1.1)), quantilesExactWeightedArray(0.5, 0.95, 0.99)(ms.bin, ms.steps)) AS quantiles_ms
    FROM
    (
        SELECT *, toDate(hour) AS day
        FROM first_token_hours
        WHERE hour >= {since:DateTime('UTC')} AND hour < {until:DateTime('UTC')} AND steps > 0
            -- A refresh writes all rows of an hour, with one version: no FINAL, as in attempts.sql.
            AND (hour, version) IN
            (
                SELECT hour, max(version) FROM first_token_hours
                WHERE hour >= {since:DateTime('UTC')} AND hour < {until:DateTime('UTC')}
                GROUP BY hour
            )
    )
    GROUP BY $by
) AS f USING ($by)
