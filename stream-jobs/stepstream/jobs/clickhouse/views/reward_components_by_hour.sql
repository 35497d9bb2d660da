SELECT
    $by,
    max(c.kind) AS kind,
    sum(c.n) AS trajectories,
    if(trajectories = 0, NULL, sum(c.total) / trajectories) AS mean,
    if(trajectories < 2, NULL, sqrt(greatest(0., (sum(c.squares) - pow(sum(c.total), 2) / trajectories)
        / (trajectories - 1)))) AS deviation,
    if(trajectories = 0, NULL, sum(c.paid) / trajectories) AS paid,
    if(trajectories = 0, 'no trajectory has the component', '') AS reason
FROM
(
    SELECT
        hour, toDate(hour) AS day, tenant, agent, model, environment, policy_version, split, reward_spec,
        name, kind, n, total, squares, paid
    FROM component_hours
    ARRAY JOIN component.name AS name, component.kind AS kind, component.n AS n, component.total AS total,
        component.squares AS squares, component.paid AS paid
    WHERE hour >= {since:DateTime('UTC')} AND hour < {until:DateTime('UTC')}
        -- A refresh writes all rows of an hour, with one version: no FINAL, as in fragments/attempts.sql.
        AND (hour, version) IN
        (
            SELECT hour, max(version) FROM component_hours
            WHERE hour >= {since:DateTime('UTC')} AND hour < {until:DateTime('UTC')}
            GROUP BY hour
        )
) AS c
GROUP BY $by
HAVING trajectories > 0
