-- Of one task: n runs that are `is_plain`, of which c succeeded, their pairs and the variations of cost, time and calls.
        toInt64(countIf(is_plain)) AS n,
        toInt64(countIf(is_plain AND t.outcome)) AS c,
        arrayMap(run -> run.2, groupArraySortedIf(50)(
            (t.trajectory_id, CAST(t.call.tool, 'Array(String)')), is_plain AND assumeNotNull(t.outcome))) AS paths,
        arrayFlatten(arrayMap(i -> arrayMap(
            j -> (divergence_of(paths[i], paths[j]), edits_of(paths[i], paths[j])),
            range(i + 1, length(paths) + 1)), range(1, length(paths) + 1))) AS pairs,
        arrayMap(v -> assumeNotNull(v), arrayFilter(v -> v IS NOT NULL, [
            variation_of(ifNull(stddevSampIf(toFloat64(t.cost_usd), is_plain), nan), ifNull(avgIf(toFloat64(t.cost_usd), is_plain), 0)),
            variation_of(stddevSampIf(dateDiff('millisecond', t.started_at, t.ended_at), is_plain),
                avgIf(dateDiff('millisecond', t.started_at, t.ended_at), is_plain)),
            variation_of(stddevSampIf(length(t.call.tool), is_plain), avgIf(length(t.call.tool), is_plain))])) AS variations
