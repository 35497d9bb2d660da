WITH
    $wilson
SELECT
    $by,
    sum(h.trajectories) AS attempts,
    sum(h.outcomes) AS outcomes,
    sum(h.successes) AS successes,
    sum(h.truncated) AS truncated,
    share_of(successes, outcomes) AS success_rate,
    wilson_low_of(successes, outcomes, z95) AS wilson_low,
    wilson_high_of(successes, outcomes, z95) AS wilson_high,
    if(outcomes = 0, 'no attempt has an outcome', '') AS reason
FROM
(
    $trajectory_hours
) AS h
GROUP BY $by
HAVING attempts > 0
