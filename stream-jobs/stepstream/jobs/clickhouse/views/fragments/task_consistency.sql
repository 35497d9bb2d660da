-- Of one task: n runs that are `is_plain`, of which c succeeded, their lists of tools, and the variations of cost, time and calls.
        toInt64(countIf(is_plain)) AS n,
        toInt64(countIf(is_plain AND t.outcome)) AS c,
        arrayMap(run -> run.2, groupArraySortedIf(50)(
            (t.trajectory_id, CAST(t.call.tool, 'Array(String)')), is_plain AND assumeNotNull(t.outcome))) AS paths,
        arrayFilter(variation -> isFinite(variation), arrayMap((deviation, mean) -> deviation / mean,
            [ifNull(stddevSampIf(toFloat64(t.cost_usd), is_plain), nan),
                stddevSampIf(dateDiff('millisecond', t.started_at, t.ended_at), is_plain), stddevSampIf(length(t.call.tool), is_plain)],
            [ifNull(avgIf(toFloat64(t.cost_usd), is_plain), 0),
                avgIf(dateDiff('millisecond', t.started_at, t.ended_at), is_plain), avgIf(length(t.call.tool), is_plain)])) AS variations
