SELECT
    $by,
    c.parent_version AS parent_version,
    c.track AS track,
    c.occurred_at AS created_at,
    c.trajectories AS trained_trajectories,
    c.updates AS updates_since_root,
    c.code_version AS code_version,
    c.weights_sha256 AS weights_sha256,
    c.size_bytes AS size_bytes,
    if(c.parent_version IS NULL, 'a root has no parent', '') AS reason
FROM checkpoints AS c FINAL
WHERE c.occurred_at >= {since:DateTime('UTC')} AND c.occurred_at < {until:DateTime('UTC')}
