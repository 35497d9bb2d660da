-- One table for each governed or derived topic. Keys are chosen so that a redelivered record folds into the row that
-- is there (ReplacingMergeTree): events are immutable and keyed by what they are; statements about something carry a
-- version, and the newest wins. Read with FINAL, or count distinct keys: merges come when they come.
-- The deduplication window makes a retried batch with the same token free; correctness does not rest on it.

CREATE TABLE IF NOT EXISTS steps
(
    event_id String,
    trajectory_id String,
    step_index Int32,
    occurred_at DateTime64(6, 'UTC'),
    producer LowCardinality(String),
    tenant LowCardinality(String),
    consent LowCardinality(String),
    user Nullable(String),
    parent_trajectory_id Nullable(String),
    parent_step_index Nullable(Int32),
    task_id String,
    group_id Nullable(String),
    agent LowCardinality(String),
    environment LowCardinality(String),
    harness_version LowCardinality(String),
    track LowCardinality(String),
    split LowCardinality(String),
    model LowCardinality(String),
    version_min Nullable(Int32) COMMENT 'Oldest policy version in the response.',
    version_max Nullable(Int32) COMMENT 'Newest policy version in the response.',
    fidelity LowCardinality(String),
    shared_tokens UInt32 COMMENT 'Prompt tokens that repeat the step before.',
    prompt_tokens UInt32 COMMENT 'Prompt tokens that are new.',
    response_tokens UInt32,
    logprob_sum Float64 COMMENT 'Sum of the behaviour logprobs of the response.',
    messages String COMMENT 'New messages of the prompt, as JSON.',
    response String COMMENT 'What the agent answered, as JSON.',
    tools Array(LowCardinality(String)) COMMENT 'Names of the tools that the response calls, in order.',
    temperature Float64,
    finish_reason LowCardinality(String),
    trajectory_end LowCardinality(String),
    error LowCardinality(Nullable(String)),
    duration_ms Nullable(Float32),
    first_token_ms Nullable(Float32),
    cost_usd Nullable(Float64),
    source_event_id String COMMENT 'event_id of the step as its producer wrote it.',
    trainable Bool,
    redactions Map(LowCardinality(String), Int32),
    flags Array(LowCardinality(String)),
    INDEX by_time occurred_at TYPE minmax
)
ENGINE = ReplacingMergeTree
ORDER BY (trajectory_id, step_index, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS feedback
(
    event_id String,
    trajectory_id String,
    step_index Nullable(Int32) COMMENT 'NULL: about the whole trajectory.',
    tool_call_id Nullable(String),
    occurred_at DateTime64(6, 'UTC'),
    producer LowCardinality(String),
    tenant LowCardinality(String),
    consent LowCardinality(String),
    user Nullable(String),
    name LowCardinality(String),
    value Nullable(Float64),
    category LowCardinality(Nullable(String)),
    comment Nullable(String),
    demonstration Nullable(String),
    source LowCardinality(String),
    retracts Nullable(String),
    trajectory_end LowCardinality(String),
    last_step_index Nullable(Int32),
    source_event_id String COMMENT 'event_id of the feedback as its producer wrote it.',
    redactions Map(LowCardinality(String), Int32),
    flags Array(LowCardinality(String))
)
ENGINE = ReplacingMergeTree
ORDER BY (trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS closures
(
    event_id String,
    trajectory_id String,
    occurred_at DateTime64(6, 'UTC'),
    reason LowCardinality(String),
    last_step_index Int32 COMMENT 'Highest step index seen; -1: none.',
    job LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS trajectories
(
    event_id String,
    trajectory_id String,
    revision Int32,
    occurred_at DateTime64(6, 'UTC') COMMENT 'When it was labelled.',
    parent_trajectory_id Nullable(String),
    parent_step_index Nullable(Int32),
    task_id String,
    group_id Nullable(String),
    tenant LowCardinality(String),
    consent LowCardinality(String),
    agent LowCardinality(String),
    environment LowCardinality(String),
    harness_version LowCardinality(String),
    track LowCardinality(String),
    split LowCardinality(String),
    model LowCardinality(String),
    version_min Nullable(Int32),
    version_max Nullable(Int32),
    fidelity LowCardinality(String),
    trajectory_end LowCardinality(String),
    closed_by LowCardinality(String),
    complete Bool,
    success Nullable(Bool) COMMENT 'NULL: no outcome yet.',
    reward Float64,
    reward_spec LowCardinality(String),
    steps UInt32,
    sequences UInt32 COMMENT 'Training sequences.',
    tool_calls Map(LowCardinality(String), Int32),
    tool_errors Map(LowCardinality(String), Int32),
    flags Array(LowCardinality(String)),
    trainable Bool,
    prompt_tokens UInt64,
    response_tokens UInt64,
    started_at DateTime64(6, 'UTC'),
    ended_at DateTime64(6, 'UTC'),
    cost_usd Nullable(Float64),
    labelled_by LowCardinality(String)
)
ENGINE = ReplacingMergeTree(revision)
ORDER BY trajectory_id
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS trajectory_steps
(
    trajectory_id String,
    step_index Int32,
    revision Int32 COMMENT 'Revision of the trajectory that this is of.',
    event_id String COMMENT 'Governed step that it labels.',
    reward Float64,
    return_to_go Float64,
    components Map(LowCardinality(String), Float64) COMMENT 'Weighted terms of the reward, by name.',
    version_min Nullable(Int32),
    version_max Nullable(Int32),
    prompt_tokens UInt32 COMMENT 'Whole prompt, shared part included.',
    response_tokens UInt32,
    duration_ms Nullable(Float32),
    error LowCardinality(Nullable(String)),
    trainable Bool
)
ENGINE = ReplacingMergeTree(revision)
ORDER BY (trajectory_id, step_index)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS trajectory_stats
(
    event_id String,
    occurred_at DateTime64(6, 'UTC'),
    scope LowCardinality(String),
    key String,
    partition Int32,
    version Int64 COMMENT 'Offset after the last record folded; the newest is the whole truth of its partition.',
    trajectory_id Nullable(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    policy_version Nullable(Int32),
    harness_version LowCardinality(String),
    split LowCardinality(String),
    tool LowCardinality(String) COMMENT 'Empty: all of the trajectory.',
    trajectories Int64,
    successes Int64,
    failures Int64,
    truncated Int64,
    steps Int64,
    errors Int64,
    tool_calls Int64,
    prompt_tokens Int64,
    response_tokens Int64,
    reward_sum Float64,
    duration_ms_sum Float64
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (scope, key, partition)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS checkpoints
(
    event_id String,
    occurred_at DateTime64(6, 'UTC'),
    model LowCardinality(String),
    version Int32,
    parent_version Nullable(Int32),
    track LowCardinality(String),
    uri String,
    weights_sha256 String,
    files Array(String),
    size_bytes UInt64 COMMENT 'All files.',
    trajectories UInt64 COMMENT 'Labelled trajectories trained on since the parent.',
    updates Int64 COMMENT 'Updates since the root of the lineage.',
    configuration String,
    code_version LowCardinality(String),
    metrics Map(LowCardinality(String), Float64)
)
ENGINE = ReplacingMergeTree(occurred_at)
ORDER BY (model, version)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS worker_status
(
    event_id String,
    occurred_at DateTime64(6, 'UTC'),
    worker_id LowCardinality(String),
    engine LowCardinality(String),
    url String,
    model LowCardinality(String),
    version Nullable(Int32),
    newest_version Nullable(Int32),
    state LowCardinality(String),
    reason Nullable(String),
    requests_in_flight Int32
)
ENGINE = ReplacingMergeTree
ORDER BY (worker_id, occurred_at, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS dead_letters
(
    event_id String,
    occurred_at DateTime64(6, 'UTC'),
    job LowCardinality(String),
    topic LowCardinality(String),
    partition Int32,
    offset Int64,
    value_bytes Int64 COMMENT 'Size of the refused value; itself, ungoverned, it stays on the topic.',
    error LowCardinality(String),
    reason String
)
ENGINE = ReplacingMergeTree
ORDER BY (topic, partition, offset, job, event_id)
SETTINGS non_replicated_deduplication_window = 1000;
