-- The shape of Langfuse's newest tables (events and scores; migrations 0003 and 0040 of August 2026), without columns
-- that stay empty here. A step is a span of the type GENERATION, a tool call one of the type TOOL, a trajectory an AGENT.
CREATE TABLE lf_events
(
    project_id String,
    trace_id String,
    span_id String,
    parent_span_id String,
    start_time DateTime64(6, 'UTC'),
    end_time Nullable(DateTime64(6, 'UTC')),
    name String,
    type LowCardinality(String),
    environment LowCardinality(String) DEFAULT 'default',
    version String,
    release String,
    trace_name String,
    user_id String,
    session_id String,
    tags Array(String),
    level LowCardinality(String),
    status_message String,
    completion_start_time Nullable(DateTime64(6, 'UTC')),
    provided_model_name String,
    usage_details Map(LowCardinality(String), UInt64),
    cost_details Map(LowCardinality(String), Decimal(18, 12)),
    total_cost Decimal(18, 12) ALIAS cost_details['total'],
    tool_call_names Array(String),
    metadata_names Array(String),
    metadata_values Array(String),
    created_at DateTime64(6, 'UTC') DEFAULT now(),
    updated_at DateTime64(6, 'UTC') DEFAULT now(),
    event_ts DateTime64(6, 'UTC'),
    is_deleted UInt8,
    INDEX idx_span_id span_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_trace_id trace_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_user_id user_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_session_id session_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_created_at created_at TYPE minmax GRANULARITY 1,
    INDEX idx_provided_model_name provided_model_name TYPE bloom_filter(0.01) GRANULARITY 2,
    INDEX idx_metadata_names metadata_names TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(event_ts, is_deleted)
PARTITION BY toYYYYMM(start_time)
PRIMARY KEY (project_id, toStartOfMinute(start_time), xxHash32(trace_id))
ORDER BY (project_id, toStartOfMinute(start_time), xxHash32(trace_id), span_id, start_time)
SAMPLE BY xxHash32(trace_id);

CREATE TABLE lf_scores
(
    id String,
    timestamp DateTime64(3, 'UTC'),
    project_id String,
    environment LowCardinality(String) DEFAULT 'default',
    trace_id Nullable(String),
    observation_id Nullable(String),
    name String,
    value Float64,
    source String,
    data_type String,
    created_at DateTime64(3, 'UTC') DEFAULT now(),
    updated_at DateTime64(3, 'UTC') DEFAULT now(),
    event_ts DateTime64(3, 'UTC'),
    is_deleted UInt8,
    INDEX idx_id id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_project_trace (project_id, trace_id) TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(event_ts, is_deleted)
PARTITION BY toYYYYMM(timestamp)
PRIMARY KEY (project_id, toDate(timestamp), name)
ORDER BY (project_id, toDate(timestamp), name, id);
