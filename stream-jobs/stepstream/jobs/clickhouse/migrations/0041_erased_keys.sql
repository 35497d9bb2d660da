-- Keys of rows that an erasure is hiding, a partition for each set; dropped once the rows are hidden.
CREATE TABLE IF NOT EXISTS erased_keys
(
    pass UInt64 COMMENT 'Random number of the set.',
    tenant LowCardinality(String),
    number UInt64,
    name String CODEC(ZSTD(1)),
    at DateTime('UTC') DEFAULT now('UTC')
)
ENGINE = MergeTree
PARTITION BY pass
ORDER BY tuple()
-- Of an erasure that was killed.
TTL at + INTERVAL 1 DAY
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, old_parts_lifetime = 60;
