SELECT
    $by,
    t.end AS ended,
    arrayLastIndex(error -> error != '', t.call.error) AS place,
    if(place = 0, '', toString(t.call.tool[place])) AS failed_tool,
    if(place = 0, '', toString(t.call.error[place])) AS error_class,
    count() AS failures,
    failures / sum(failures) OVER (PARTITION BY $by) AS share_of_failures,
    uniqExact(t.task_id) AS tasks,
    avg(t.steps) AS steps,
    argMax(t.trajectory_id, (t.opened_at, t.trajectory_id)) AS newest_trajectory_id,
    max(t.opened_at) AS newest_at,
    if(failed_tool = '', 'no tool call failed', '') AS reason
FROM
(
    $trajectories
) AS t
WHERE NOT ifNull(t.outcome, true)
GROUP BY $by, ended, place, failed_tool, error_class
