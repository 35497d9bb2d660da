SELECT
    $by,
    ended,
    failed_tool,
    error_class,
    count() AS failures,
    failures / sum(failures) OVER (PARTITION BY $by) AS share_of_failures,
    uniqExact(task_key) AS tasks,
    avg(taken) AS steps,
    -- Of two that began together, the greater id.
    (max((opened_at, trajectory_id)) AS newest).2 AS newest_trajectory_id,
    newest.1 AS newest_at,
    if(failed_tool = '', 'no tool call failed', '') AS reason
FROM
(
    SELECT
        $by,
        t.end AS ended,
        arrayLastIndex(error -> error != '', t.call.error) AS place,
        if(place = 0, '', toString(t.call.tool[place])) AS failed_tool,
        if(place = 0, '', toString(t.call.error[place])) AS error_class,
        sipHash64(t.task_id) AS task_key,
        t.steps AS taken,
        t.opened_at AS opened_at,
        t.trajectory_id AS trajectory_id
    FROM
    (
        $trajectories
    ) AS t
    WHERE NOT ifNull(t.outcome, true)
)
GROUP BY $by, ended, failed_tool, error_class
