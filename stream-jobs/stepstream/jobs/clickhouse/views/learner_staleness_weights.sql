SELECT
    $by,
    l.least AS staleness_from,
    any(l.most) AS staleness_to,
    sum(l.tokens) AS trained_tokens,
    if(trained_tokens = 0, NULL, sum(l.effective_share * l.tokens) / trained_tokens) AS effective_share,
    if(trained_tokens = 0, NULL, sum(l.clip_share * l.tokens) / trained_tokens) AS clip_share,
    if(trained_tokens = 0, NULL, sum(l.rejected_share * l.tokens) / trained_tokens) AS rejected_share,
    if(trained_tokens = 0, NULL, sum(l.kl * l.tokens) / trained_tokens) AS kl,
    if(trained_tokens = 0, 'no token of this staleness', '') AS reason
FROM learner_update_lags AS l FINAL
WHERE l.occurred_at >= {since:DateTime('UTC')} AND l.occurred_at < {until:DateTime('UTC')}
GROUP BY $by, staleness_from
