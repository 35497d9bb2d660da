-- Where the records of each person are on the log, for `erase`. One row: all records in a range of a partition.
CREATE TABLE IF NOT EXISTS person_index
(
    topic LowCardinality(String),
    partition UInt32,
    basis UInt64 COMMENT 'Hash of the topic''s id, the key of the digests and the format; rows with another are not used.',
    first_offset Int64,
    end_offset Int64 COMMENT 'Offset after the last of the range.',
    offsets Array(Int64) COMMENT 'Of each entry; a record has one for each owner.' CODEC(Delta, ZSTD(1)),
    owners Array(UInt64) COMMENT 'Hash of a key, of a person''s keyed digest, or of a trajectory; 0: anyone.' CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree
ORDER BY (topic, partition, basis, first_offset, end_offset)
SETTINGS non_replicated_deduplication_window = 1000;
