-- The shape of TensorZero's tables (its ClickHouse migrations of April 2026), without columns that stay empty here.
-- A step is a ChatInference with its ModelInference, a trajectory an episode. A function is an agent; a variant is a
-- model and its version. Tool calls are inside the output, so there are no rows of them.
CREATE TABLE tz_ChatInference
(
    id UUID,
    function_name LowCardinality(String),
    variant_name LowCardinality(String),
    episode_id UUID,
    input String,
    output String,
    processing_time_ms Nullable(UInt32),
    ttft_ms Nullable(UInt32),
    tags Map(String, String) DEFAULT map(),
    timestamp DateTime MATERIALIZED UUIDv7ToDateTime(id),
    INDEX inference_id_index id TYPE bloom_filter GRANULARITY 1
)
ENGINE = MergeTree
ORDER BY (function_name, variant_name, episode_id);

CREATE TABLE tz_ModelInference
(
    id UUID,
    inference_id UUID,
    model_name LowCardinality(String),
    model_provider_name LowCardinality(String),
    input_tokens Nullable(UInt32),
    output_tokens Nullable(UInt32),
    response_time_ms Nullable(UInt32),
    ttft_ms Nullable(UInt32),
    cost Nullable(Decimal(18, 9)),
    timestamp DateTime MATERIALIZED UUIDv7ToDateTime(id)
)
ENGINE = MergeTree
ORDER BY inference_id;

CREATE TABLE tz_InferenceByEpisodeId
(
    episode_id_uint UInt128,
    id_uint UInt128,
    function_name LowCardinality(String),
    variant_name LowCardinality(String)
)
ENGINE = MergeTree
ORDER BY (episode_id_uint, id_uint);

CREATE MATERIALIZED VIEW tz_InferenceByEpisodeIdView TO tz_InferenceByEpisodeId AS
SELECT toUInt128(episode_id) AS episode_id_uint, toUInt128(id) AS id_uint, function_name, variant_name
FROM tz_ChatInference;

CREATE TABLE tz_FloatMetricFeedback
(
    id UUID,
    target_id UUID,
    metric_name LowCardinality(String),
    value Float32,
    timestamp DateTime MATERIALIZED UUIDv7ToDateTime(id)
)
ENGINE = MergeTree
ORDER BY (metric_name, target_id);

CREATE TABLE tz_FeedbackByVariantStatistics
(
    function_name LowCardinality(String),
    variant_name LowCardinality(String),
    metric_name LowCardinality(String),
    minute DateTime,
    feedback_mean AggregateFunction(avg, Float32),
    count SimpleAggregateFunction(sum, UInt64)
)
ENGINE = AggregatingMergeTree
ORDER BY (function_name, metric_name, variant_name, minute);

CREATE TABLE tz_ModelProviderStatistics
(
    model_name LowCardinality(String),
    model_provider_name LowCardinality(String),
    minute DateTime,
    response_time_ms_quantiles AggregateFunction(quantilesTDigest(0.5, 0.9, 0.95, 0.99), Nullable(UInt32)),
    total_input_tokens AggregateFunction(sum, Nullable(UInt32)),
    total_output_tokens AggregateFunction(sum, Nullable(UInt32)),
    count AggregateFunction(count, UInt32)
)
ENGINE = AggregatingMergeTree
ORDER BY (model_name, model_provider_name, minute);

CREATE MATERIALIZED VIEW tz_ModelProviderStatisticsView TO tz_ModelProviderStatistics AS
SELECT
    model_name,
    model_provider_name,
    toStartOfMinute(timestamp) AS minute,
    quantilesTDigestState(0.5, 0.9, 0.95, 0.99)(response_time_ms) AS response_time_ms_quantiles,
    sumState(input_tokens) AS total_input_tokens,
    sumState(output_tokens) AS total_output_tokens,
    countState() AS count
FROM tz_ModelInference
GROUP BY model_name, model_provider_name, minute;
