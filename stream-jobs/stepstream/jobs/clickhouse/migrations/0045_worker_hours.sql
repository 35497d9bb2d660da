-- Which version each worker served, by hour: a worker sends 1,800 statuses an hour. Minimum and maximum do not change
-- when a record is delivered again.
CREATE TABLE IF NOT EXISTS worker_hours
(
    hour DateTime('UTC') COMMENT 'Hour of written_at.',
    model LowCardinality(String),
    worker_id LowCardinality(String),
    version Int32 COMMENT '-1: none was loaded.',
    first_served SimpleAggregateFunction(min, Nullable(DateTime64(6, 'UTC'))) COMMENT 'First status in the hour of a worker that serves it; NULL: there is none.',
    last_seen SimpleAggregateFunction(max, DateTime64(6, 'UTC')) COMMENT 'Last status in the hour.'
)
ENGINE = AggregatingMergeTree
ORDER BY (hour, model, worker_id, version)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE MATERIALIZED VIEW IF NOT EXISTS worker_status_hours TO worker_hours AS
SELECT
    toStartOfHour(toDateTime(written_at, 'UTC')) AS hour, model, worker_id, ifNull(w.version, -1) AS version,
    minOrNullIf(written_at, state = 'serving') AS first_served, max(written_at) AS last_seen
FROM worker_status AS w
GROUP BY hour, model, worker_id, version;

-- Rows of earlier releases. To repeat it changes nothing.
INSERT INTO worker_hours (hour, model, worker_id, version, first_served, last_seen)
SELECT
    toStartOfHour(toDateTime(written_at, 'UTC')) AS hour, model, worker_id, ifNull(w.version, -1) AS version,
    minOrNullIf(written_at, state = 'serving'), max(written_at)
FROM worker_status AS w
GROUP BY hour, model, worker_id, version;
