-- Sums of trajectory_hours by day: a year of days is read in the time of two weeks of hours.
CREATE TABLE IF NOT EXISTS trajectory_days
(
    day Date,
    tenant LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    environment LowCardinality(String),
    harness_version LowCardinality(String),
    policy_version Int32,
    track LowCardinality(String),
    split LowCardinality(String),
    trajectories UInt64 CODEC(T64, ZSTD(1)),
    outcomes UInt64 CODEC(T64, ZSTD(1)) COMMENT 'Those with an outcome; one cut off by a limit without any is a failure.',
    successes UInt64 CODEC(T64, ZSTD(1)),
    truncated UInt64 CODEC(T64, ZSTD(1)) COMMENT 'Those cut off by a limit of steps, time or tokens, whatever their outcome.',
    steps UInt64 CODEC(T64, ZSTD(1)),
    errors UInt64 CODEC(T64, ZSTD(1)),
    calls UInt64 CODEC(T64, ZSTD(1)),
    prompt_tokens UInt64 CODEC(T64, ZSTD(1)),
    response_tokens UInt64 CODEC(T64, ZSTD(1)),
    cost_usd Decimal(18, 9),
    costed UInt64 CODEC(T64, ZSTD(1)) COMMENT 'Trajectories whose cost is known.',
    reward_sum Float64,
    reward_squares Float64,
    duration_ms_sum Float64,
    lag Nested(versions UInt32, trajectories UInt64) COMMENT 'Trajectories by the number of versions between the newest checkpoint at their end and their oldest token.',
    version DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(day)
ORDER BY (day, tenant, agent, model, environment, harness_version, policy_version, track, split)
SETTINGS non_replicated_deduplication_window = 1000;

-- Days of earlier releases, also those whose facts are gone. To repeat it changes nothing.
INSERT INTO trajectory_days (day, tenant, agent, model, environment, harness_version, policy_version, track, split, trajectories, outcomes, successes, truncated, steps, errors, calls, prompt_tokens, response_tokens, cost_usd, costed, reward_sum, reward_squares, duration_ms_sum, `lag.versions`, `lag.trajectories`, version)
SELECT
    toDate(hour) AS day, tenant, agent, model, environment, harness_version, policy_version, track, split,
    sum(h.trajectories), sum(h.outcomes), sum(h.successes), sum(h.truncated), sum(h.steps), sum(h.errors), sum(h.calls),
    sum(h.prompt_tokens), sum(h.response_tokens), sum(h.cost_usd), sum(h.costed), sum(h.reward_sum), sum(h.reward_squares),
    sum(h.duration_ms_sum), (sumMap(h.lag.versions, h.lag.trajectories) AS lags).1, lags.2, now64(6, 'UTC')
FROM (SELECT * FROM trajectory_hours FINAL) AS h
GROUP BY day, tenant, agent, model, environment, harness_version, policy_version, track, split;
