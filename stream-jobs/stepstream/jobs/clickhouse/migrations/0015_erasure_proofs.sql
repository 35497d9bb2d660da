-- What each request to erase a person removed. The newest proof of a request counts.
CREATE TABLE IF NOT EXISTS erasure_proofs
(
    event_id String,
    request_id String,
    tenant LowCardinality(String),
    subject String COMMENT 'Keyed digest of tenant and user.',
    requested_by LowCardinality(String),
    version LowCardinality(String) COMMENT 'Release that finished the erasure.',
    keys_destroyed UInt32,
    rows_deleted Map(LowCardinality(String), UInt64) COMMENT 'By table.',
    consents_deleted UInt32,
    trajectories UInt32,
    occurred_at DateTime64(6, 'UTC'),
    requested_at DateTime64(6, 'UTC'),
    erased_until DateTime64(6, 'UTC'),
    records_unreadable UInt64 COMMENT 'Records whose keys were destroyed.',
    records_deleted UInt64 COMMENT 'Unsealed records, deleted from the log.',
    remaining Map(LowCardinality(String), UInt64) COMMENT 'Readable records that remain, by place; 0: unknown.'
)
ENGINE = ReplacingMergeTree(occurred_at)
ORDER BY request_id
SETTINGS non_replicated_deduplication_window = 1000;
