WITH
    $wilson
SELECT
    $by,
    calls,
    error_class,
    errors[error_class] AS class_errors,
    share_of(class_errors, calls) AS error_rate,
    wilson_low_of(class_errors, calls, 2.5758293035489004) AS error_rate_low,
    (baseline_errors[error_class] + 0.5) / (baseline_calls + 1) AS baseline_rate,
    toBool(lower(error_class) NOT IN ('', 'unknown', 'other', 'error')) AS is_known,
    toBool(if(is_known, calls >= 20 AND ifNull(error_rate_low > 2 * baseline_rate, false), class_errors >= 3)) AS alert,
    multiIf(is_known AND calls < 20, 'fewer than 20 calls', NOT is_known AND class_errors < 3,
        'fewer than 3 unknown errors', '') AS reason
FROM
(
    SELECT
        $by,
        sumIf(t.calls, is_window) AS calls,
        sumIf(t.calls, NOT is_window) AS baseline_calls,
        sumMapIf(CAST((t.error.class, t.error.calls), 'Map(String, UInt64)'), is_window) AS errors,
        sumMapIf(CAST((t.error.class, t.error.calls), 'Map(String, UInt64)'), NOT is_window) AS baseline_errors
    FROM
    (
        $tool_calls
    ) AS t
    GROUP BY $by
)
ARRAY JOIN mapKeys(errors) AS error_class
