SELECT
    $by,
    u.occurred_at AS occurred_at,
    u.learner_version AS learner_version,
    u.groups AS groups,
    u.trajectories AS trajectories,
    if(mapContains(u.figures, 'effective_share'), u.figures['effective_share'], NULL) AS effective_share,
    effective_share * u.figures['tokens'] AS effective_tokens,
    if(mapContains(u.figures, 'clip_share'), u.figures['clip_share'], NULL) AS clip_share,
    if(mapContains(u.figures, 'kl'), u.figures['kl'], NULL) AS kl,
    if(mapContains(u.figures, 'entropy'), u.figures['entropy'], NULL) AS entropy,
    if(mapContains(u.figures, 'staleness_mean'), u.figures['staleness_mean'], NULL) AS staleness_mean,
    if(mapContains(u.figures, 'staleness_max'), u.figures['staleness_max'], NULL) AS staleness_max,
    if(effective_share IS NULL, 'the objective weighs no token', '') AS reason
FROM learner_updates AS u FINAL
WHERE u.occurred_at >= {since:DateTime('UTC')} AND u.occurred_at < {until:DateTime('UTC')}
