SELECT
    $by,
    c.consistency AS consistency,
    r.robustness AS robustness,
    1 - p.ece AS p_cal,
    p.auroc AS p_auroc,
    1 - p.brier AS predictability,
    (consistency + robustness + predictability) / 3 AS reliability,
    s.safety AS safety,
    multiIf(c.consistency IS NULL, concat('consistency: ', c.reason), r.robustness IS NULL,
        concat('robustness: ', if(r.reason = '', 'no run', r.reason)), p.brier IS NULL, 'no stated confidence', '') AS reason
FROM
(
    $view_consistency
) AS c
LEFT JOIN
(
    $view_robustness
) AS r USING ($by)
LEFT JOIN
(
    SELECT $by, toNullable(ece) AS ece, auroc, toNullable(brier) AS brier FROM
    (
        $view_calibration
    )
) AS p USING ($by)
LEFT JOIN
(
    SELECT $by, toNullable(safety) AS safety FROM
    (
        $view_safety
    )
) AS s USING ($by)
