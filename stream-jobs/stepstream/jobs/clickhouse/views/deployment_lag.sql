SELECT
    $by,
    any(created) AS created_at,
    countIf(notEmpty(times) OR is_present) AS workers,
    countIf(notEmpty(times)) AS serving,
    if(serving = 0, NULL, dateDiff('millisecond', created_at, minIf(arrayMin(times), notEmpty(times))) / 1000)
        AS first_served_s,
    if(serving = 0 OR serving < workers, NULL,
        dateDiff('millisecond', created_at, maxIf(arrayMin(times), notEmpty(times))) / 1000) AS all_served_s,
    multiIf(workers = 0, 'no worker has reported since', serving < workers,
        concat(toString(workers - serving), ' of ', toString(workers), ' workers do not serve it'), '') AS reason
FROM
(
    SELECT
        c.model AS model,
        c.version AS version,
        c.occurred_at AS created,
        -- Gone without having served it: silent for five minutes, by the newest status of any worker.
        w.worker_id != '' AND w.seen_at > w.newest_at - INTERVAL 5 MINUTE AS is_present,
        arrayFilter(s -> s.1 >= c.version AND s.2 >= c.occurred_at, w.served).2 AS times
    FROM (SELECT model, version, occurred_at FROM checkpoints FINAL
        WHERE occurred_at >= {since:DateTime('UTC')} AND occurred_at < {until:DateTime('UTC')}) AS c
    LEFT JOIN
    (
        SELECT
            model,
            worker_id,
            max(last_at) AS seen_at,
            max(seen_at) OVER () AS newest_at,
            groupArray((version, first_at)) AS served
        FROM
        (
            SELECT
                model, worker_id, version, ifNull(min(first_served), toDateTime64(0, 6, 'UTC')) AS first_at, max(last_seen) AS last_at
            FROM worker_hours
            WHERE hour >= toStartOfHour({since:DateTime('UTC')})
            GROUP BY model, worker_id, version
        )
        GROUP BY model, worker_id
    ) AS w ON w.model = c.model AND w.seen_at >= c.occurred_at
)
GROUP BY $by
