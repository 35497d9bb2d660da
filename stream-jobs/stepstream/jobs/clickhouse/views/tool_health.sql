WITH
    $wilson,
    $bins
SELECT
    $by,
    sumIf(t.calls, is_window) AS calls,
    sumIf(t.failed, is_window) AS errors,
    share_of(errors, calls) AS error_rate,
    wilson_low_of(errors, calls, 2.5758293035489004) AS error_rate_low,
    sumIf(t.calls, NOT is_window) AS baseline_calls,
    sumIf(t.failed, NOT is_window) AS baseline_errors,
    (baseline_errors + 0.5) / (baseline_calls + 1) AS baseline_rate,
    toBool(calls >= 20 AND ifNull(error_rate_low > 2 * baseline_rate, false)) AS alert,
    sumMapIf(t.ms.bin, t.ms.calls, is_window) AS window_ms,
    sumMapIf(t.ms.bin, t.ms.calls, NOT is_window) AS baseline_ms,
    quantile_of_bins(window_ms.1, window_ms.2, 0.5) AS p50_ms,
    quantile_of_bins(window_ms.1, window_ms.2, 0.95) AS p95_ms,
    quantile_of_bins(baseline_ms.1, baseline_ms.2, 0.95) AS baseline_p95_ms,
    p95_ms / baseline_p95_ms AS p95_ratio,
    multiIf(calls < 20, 'fewer than 20 calls', baseline_calls = 0, 'no call in the 7 days before', '') AS reason
FROM
(
    $tool_calls
) AS t
GROUP BY $by
HAVING calls > 0
