-- Time to the first token of the steps of an hour: its quantiles over long ranges read these instead of `steps`.
CREATE TABLE IF NOT EXISTS first_token_hours
(
    hour DateTime('UTC'),
    tenant LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    environment LowCardinality(String),
    harness_version LowCardinality(String),
    policy_version Int32 COMMENT 'version_max of the step.',
    track LowCardinality(String),
    split LowCardinality(String),
    steps UInt64 CODEC(T64, ZSTD(1)) COMMENT 'Steps whose time to the first token is known.',
    ms Nested(bin Int16, steps UInt64) COMMENT 'Those by floor(ln first_token_ms / ln 1.1).',
    version DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(hour)
-- The tenant is first, unlike in other rollups: a dashboard reads one tenant's arrays over months.
ORDER BY (tenant, hour, agent, model, environment, harness_version, policy_version, track, split)
SETTINGS non_replicated_deduplication_window = 1000;

-- The refresh fills it: all hours that have steps are due. Once each: a mark of the last minute makes them due again.
INSERT INTO dirty_hours (of, hour, at)
SELECT 'steps' AS of, toStartOfHour(toDateTime(occurred_at, 'UTC')) AS hour, now64(6, 'UTC') - INTERVAL 1 DAY AS at
FROM steps GROUP BY hour;
