-- Facts by identity and an immutable time, for charts that read rollups and for searches that read a range of time
-- (docs/analytics.md, docs/decisions/analytics-tables.md). The tables of earlier releases get the suffix _0015;
-- 0017 copies their rows and 0018 drops them.

RENAME TABLE steps TO steps_0015;
RENAME TABLE feedback TO feedback_0015;
RENAME TABLE closures TO closures_0015;
RENAME TABLE trajectories TO trajectories_0015;
RENAME TABLE trajectory_steps TO trajectory_steps_0015;
RENAME TABLE reward_components TO reward_components_0015;
RENAME TABLE curation TO curation_0015;
RENAME TABLE governance_audit TO governance_audit_0015;
RENAME TABLE training_decisions TO training_decisions_0015;

CREATE TABLE IF NOT EXISTS steps
(
    tenant LowCardinality(String),
    trajectory_id String CODEC(ZSTD(1)),
    step_index UInt32 CODEC(T64, ZSTD(1)),
    source_key UInt64 CODEC(NONE) COMMENT 'First 8 bytes of MD5 of the event_id that the producer wrote, little-endian.',
    governed_by UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Version of the policy; the newest counts.',
    occurred_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    agent LowCardinality(String),
    model LowCardinality(String),
    environment LowCardinality(String),
    harness_version LowCardinality(String),
    track LowCardinality(String),
    split LowCardinality(String),
    fidelity LowCardinality(String),
    consent LowCardinality(String),
    user String CODEC(ZSTD(1)) COMMENT 'Empty: nobody is named.',
    task_id String CODEC(ZSTD(1)),
    group_id String CODEC(ZSTD(1)) COMMENT 'Empty: no group.',
    version_min Int32 CODEC(T64, ZSTD(1)) COMMENT 'Oldest policy version in the responses; -1: none.',
    version_max Int32 CODEC(T64, ZSTD(1)) COMMENT 'Newest policy version in the responses; -1: none.',
    shared_tokens UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Prompt tokens that repeat the step that it continues.',
    prompt_tokens UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Prompt tokens that are new.',
    response_tokens UInt32 CODEC(T64, ZSTD(1)),
    logprob_sum Float32 COMMENT 'Sum of the behaviour logprobs of the response.',
    tools Array(LowCardinality(String)) COMMENT 'Names of the tools that the response calls, in order.',
    finish_reason LowCardinality(String),
    error LowCardinality(String) COMMENT 'Empty: the call succeeded.',
    duration_ms Nullable(Float32),
    first_token_ms Nullable(Float32),
    cost_usd Nullable(Decimal(18, 9)),
    trainable Bool,
    flags Array(LowCardinality(String))
)
ENGINE = ReplacingMergeTree(governed_by)
PARTITION BY toDate(occurred_at)
PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, step_index, source_key, occurred_at)
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS step_contents
(
    tenant LowCardinality(String),
    trajectory_id String CODEC(ZSTD(1)),
    step_index UInt32 CODEC(T64, ZSTD(1)),
    source_key UInt64 CODEC(NONE) COMMENT 'First 8 bytes of MD5 of the event_id that the producer wrote, little-endian.',
    governed_by UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Version of the policy; the newest counts.',
    occurred_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    event_id String CODEC(ZSTD(1)),
    source_event_id String CODEC(ZSTD(1)) COMMENT 'event_id of the step as its producer wrote it.',
    producer LowCardinality(String),
    parent_trajectory_id String CODEC(ZSTD(1)) COMMENT 'Empty: no parent.',
    parent_step_index Int32 CODEC(T64, ZSTD(1)) COMMENT '-1: unknown.',
    end LowCardinality(String),
    shared_step Int32 CODEC(T64, ZSTD(1)) COMMENT 'Step whose context it continues where that is not the step before; -1: the step before.',
    shared_messages UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Prompt messages that repeat the step that it continues.',
    usage_prompt_tokens Nullable(Int64) COMMENT 'Tokens of the whole prompt as the upstream counted them.',
    usage_response_tokens Nullable(Int64) COMMENT 'Tokens of the response as the upstream counted them.',
    messages String CODEC(ZSTD(3)) COMMENT 'New messages of the prompt, as JSON.',
    response String CODEC(ZSTD(3)) COMMENT 'Response of the agent, as JSON.',
    sampling String CODEC(ZSTD(1)) COMMENT 'Parameters of the sampling, as JSON.',
    redactions Map(LowCardinality(String), UInt32),
    INDEX words lower(concat(messages, ' ', response)) TYPE text(tokenizer = splitByNonAlpha)
)
ENGINE = ReplacingMergeTree(governed_by)
PARTITION BY toDate(occurred_at)
PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, step_index, source_key, occurred_at)
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS trajectories
(
    tenant LowCardinality(String),
    trajectory_id String CODEC(ZSTD(1)),
    revision UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Number of the label; the newest counts.',
    label_id String CODEC(ZSTD(1)) COMMENT 'event_id of the label.',
    precedence UInt256 MATERIALIZED bitShiftLeft(toUInt256(revision), 128) + reinterpretAsUInt256(reverse(unhex(replaceAll(label_id, '-', '')))) CODEC(ZSTD(1)) COMMENT 'Order among the labels of a trajectory: revision, then label_id.',
    opened_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)) COMMENT 'started_at of its first label, in every later one too.',
    started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ended_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    labelled_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    agent LowCardinality(String),
    model LowCardinality(String),
    environment LowCardinality(String),
    harness_version LowCardinality(String),
    track LowCardinality(String),
    split LowCardinality(String),
    fidelity LowCardinality(String),
    consent LowCardinality(String),
    user String CODEC(ZSTD(1)) COMMENT 'Empty: nobody is named.',
    task_id String CODEC(ZSTD(1)),
    group_id String CODEC(ZSTD(1)) COMMENT 'Empty: no group.',
    version_min Int32 CODEC(T64, ZSTD(1)) COMMENT 'Oldest policy version in the responses; -1: none.',
    version_max Int32 CODEC(T64, ZSTD(1)) COMMENT 'Newest policy version in the responses; -1: none.',
    parent_trajectory_id String CODEC(ZSTD(1)) COMMENT 'Empty: no parent.',
    parent_step_index Int32 CODEC(T64, ZSTD(1)) COMMENT '-1: unknown.',
    end LowCardinality(String),
    closed_by LowCardinality(String),
    complete Bool,
    success Nullable(Bool) COMMENT 'NULL: no outcome yet.',
    reward Float64,
    reward_spec LowCardinality(String),
    reward_spec_version Int32 CODEC(T64, ZSTD(1)) COMMENT 'Version on `reward-specs`; 0: the specification of the settings, or the built-in one.',
    pending Array(LowCardinality(String)) COMMENT 'Required reward components that are still waited for.',
    flags Array(LowCardinality(String)),
    trainable Bool,
    steps UInt32 CODEC(T64, ZSTD(1)),
    sequences UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Training sequences.',
    errors UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Steps whose call failed.',
    prompt_tokens UInt64 CODEC(T64, ZSTD(1)) COMMENT 'New prompt tokens.',
    response_tokens UInt64 CODEC(T64, ZSTD(1)),
    cost_usd Nullable(Decimal(18, 9)),
    duration_ms Float32 COMMENT 'Sum of the known durations of its model calls.',
    labelled_by LowCardinality(String),
    step Nested(index UInt32, event_key UInt32, reward Float32, return_to_go Float32, tokens UInt32) COMMENT 'Its steps in order. event_key: first 4 bytes of MD5 of the event_id of the governed step, little-endian. tokens: of the response.',
    call Nested(step UInt32, tool LowCardinality(String), error LowCardinality(String), ms Float32) COMMENT 'Tool calls. error: empty: none, or unknown. ms: -1: unknown.',
    component Nested(step UInt32, name LowCardinality(String), kind LowCardinality(String), source LowCardinality(String), value Float32, raw Float32, weight Float32, final Bool) COMMENT 'Reward components, at the step at which each is paid.'
)
ENGINE = ReplacingMergeTree(precedence)
PARTITION BY toDate(opened_at)
PRIMARY KEY (tenant, toStartOfHour(opened_at), trajectory_id)
ORDER BY (tenant, toStartOfHour(opened_at), trajectory_id, opened_at)
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS feedback
(
    tenant LowCardinality(String),
    trajectory_id String CODEC(ZSTD(1)),
    source_key UInt64 CODEC(NONE) COMMENT 'As in steps.',
    governed_by UInt32 CODEC(T64, ZSTD(1)) COMMENT 'Version of the policy; the newest counts.',
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    event_id String CODEC(ZSTD(1)),
    source_event_id String CODEC(ZSTD(1)) COMMENT 'event_id of the feedback as its producer wrote it.',
    step_index Int32 CODEC(T64, ZSTD(1)) COMMENT '-1: about the whole trajectory, or see tool_call_id.',
    tool_call_id String CODEC(ZSTD(1)) COMMENT 'Empty: about no tool call.',
    producer LowCardinality(String),
    consent LowCardinality(String),
    user String CODEC(ZSTD(1)) COMMENT 'Empty: nobody is named.',
    name LowCardinality(String),
    value Nullable(Float64),
    category LowCardinality(String) COMMENT 'Empty: none.',
    comment Nullable(String) CODEC(ZSTD(3)),
    demonstration Nullable(String) CODEC(ZSTD(3)),
    source LowCardinality(String),
    retracts String CODEC(ZSTD(1)) COMMENT 'event_id of the feedback that it takes back; empty: none.',
    end LowCardinality(String),
    last_step_index Int32 CODEC(T64, ZSTD(1)) COMMENT '-1: unknown.',
    redactions Map(LowCardinality(String), UInt32),
    flags Array(LowCardinality(String))
)
ENGINE = ReplacingMergeTree(governed_by)
PARTITION BY toDate(occurred_at)
PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, source_key, occurred_at)
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS closures
(
    tenant LowCardinality(String) COMMENT 'Empty: an earlier release decided, which named no tenant.',
    trajectory_id String CODEC(ZSTD(1)),
    event_id String CODEC(ZSTD(1)),
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    reason LowCardinality(String),
    last_step_index Int32 CODEC(T64, ZSTD(1)) COMMENT 'Highest step index seen; -1: none.',
    job LowCardinality(String),
    components Array(LowCardinality(String)) COMMENT 'With `waited`: reward components that are waited for no longer.'
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(occurred_at)
PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, event_id, occurred_at)
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS curation
(
    tenant LowCardinality(String) COMMENT 'As in closures.',
    trajectory_id String CODEC(ZSTD(1)),
    event_id String CODEC(ZSTD(1)),
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    action LowCardinality(String),
    reason String CODEC(ZSTD(1)),
    by LowCardinality(String)
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(occurred_at)
PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, event_id, occurred_at)
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS governance_audit
(
    tenant LowCardinality(String),
    trajectory_id String CODEC(ZSTD(1)),
    event_id String CODEC(ZSTD(1)),
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    source_topic LowCardinality(String),
    source_event_id String CODEC(ZSTD(1)),
    policy_version Int32 CODEC(T64, ZSTD(1)),
    action LowCardinality(String),
    found Map(LowCardinality(String), Int32),
    job LowCardinality(String)
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(occurred_at)
PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, event_id, occurred_at)
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS training_decisions
(
    tenant LowCardinality(String),
    trajectory_id String CODEC(ZSTD(1)),
    event_id String CODEC(ZSTD(1)),
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    revision Int32 CODEC(T64, ZSTD(1)) COMMENT 'Revision of the label that this is about.',
    group_id String CODEC(ZSTD(1)) COMMENT 'Empty: no group.',
    model LowCardinality(String),
    root Int32 CODEC(T64, ZSTD(1)) COMMENT 'Version that the lineage began with.',
    outcome LowCardinality(String),
    reason LowCardinality(String),
    learner_version Int32 CODEC(T64, ZSTD(1)) COMMENT 'Version that the learner trained from.',
    staleness Nullable(Int32),
    update Nullable(Int64),
    checkpoint_version Nullable(Int32) COMMENT 'First version that was trained on it.',
    trained_revision Nullable(Int32) COMMENT 'Older revision that this lineage has trained on.',
    partition Int32 CODEC(T64, ZSTD(1)),
    offset Int64 CODEC(T64, ZSTD(1)),
    job LowCardinality(String),
    INDEX times occurred_at TYPE minmax GRANULARITY 4
)
ENGINE = ReplacingMergeTree(occurred_at)
-- A learner that was killed repeats decisions, under their event ids and at a later time: no key may contain the time.
ORDER BY (tenant, trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000, old_parts_lifetime = 60;

CREATE TABLE IF NOT EXISTS rollouts
(
    event_id String CODEC(ZSTD(1)),
    occurred_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    model LowCardinality(String),
    stable_version Nullable(Int32) COMMENT 'NULL: the newest published version.',
    canary_version Nullable(Int32) COMMENT 'NULL: no canary.',
    canary_share Float64 COMMENT 'Share of trajectories on the track `canary`, 0 to 1.',
    previous_stable_version Nullable(Int32) COMMENT 'Version to which a rollback returns.',
    pinned_versions Array(Int32),
    action LowCardinality(String),
    reason String CODEC(ZSTD(1)),
    author LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (model, occurred_at, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- Times of a trajectory by its id alone. Minima and maxima do not count twice.
CREATE TABLE IF NOT EXISTS trajectory_times
(
    trajectory_key UInt64 CODEC(NONE) COMMENT 'sipHash64(trajectory_id).',
    tenant LowCardinality(String),
    first SimpleAggregateFunction(min, DateTime64(3, 'UTC')) CODEC(Delta, ZSTD(1)),
    last SimpleAggregateFunction(max, DateTime64(3, 'UTC')) CODEC(Delta, ZSTD(1))
)
ENGINE = AggregatingMergeTree
ORDER BY (trajectory_key, tenant)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 1024, old_parts_lifetime = 60;

CREATE MATERIALIZED VIEW IF NOT EXISTS steps_times TO trajectory_times AS
SELECT sipHash64(trajectory_id) AS trajectory_key, tenant, min(occurred_at) AS first, max(occurred_at) AS last
FROM steps GROUP BY trajectory_key, tenant;

-- Hours whose facts changed. The refreshes of the rollups (rollups/) recompute them whole.
CREATE TABLE IF NOT EXISTS dirty_hours
(
    of LowCardinality(String) COMMENT 'steps or trajectories.',
    hour DateTime('UTC'),
    at DateTime64(6, 'UTC') COMMENT 'Time of the newest change.'
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (of, hour)
TTL toDateTime(at) + INTERVAL 7 DAY
SETTINGS non_replicated_deduplication_window = 1000;

CREATE MATERIALIZED VIEW IF NOT EXISTS steps_dirty TO dirty_hours AS
SELECT 'steps' AS of, toStartOfHour(toDateTime(occurred_at, 'UTC')) AS hour, now64(6, 'UTC') AS at FROM steps GROUP BY hour;

CREATE MATERIALIZED VIEW IF NOT EXISTS trajectories_dirty TO dirty_hours AS
SELECT 'trajectories' AS of, toStartOfHour(toDateTime(opened_at, 'UTC')) AS hour, now64(6, 'UTC') AS at FROM trajectories GROUP BY hour;

-- Rollups: absolute sums of a whole (hour, cohort). The newest version counts; a cohort without facts has zeros.
CREATE TABLE IF NOT EXISTS trajectory_hours
(
    hour DateTime('UTC'),
    tenant LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    environment LowCardinality(String),
    harness_version LowCardinality(String),
    policy_version Int32,
    track LowCardinality(String),
    split LowCardinality(String),
    trajectories UInt64 CODEC(T64, ZSTD(1)),
    outcomes UInt64 CODEC(T64, ZSTD(1)),
    successes UInt64 CODEC(T64, ZSTD(1)),
    truncated UInt64 CODEC(T64, ZSTD(1)),
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
PARTITION BY toYYYYMM(hour)
ORDER BY (hour, tenant, agent, model, environment, harness_version, policy_version, track, split)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS step_hours
(
    hour DateTime('UTC'),
    tenant LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    environment LowCardinality(String),
    steps UInt64 CODEC(T64, ZSTD(1)),
    errors UInt64 CODEC(T64, ZSTD(1)),
    shared_tokens UInt64 CODEC(T64, ZSTD(1)),
    prompt_tokens UInt64 CODEC(T64, ZSTD(1)),
    response_tokens UInt64 CODEC(T64, ZSTD(1)),
    cost_usd Decimal(18, 9),
    costed UInt64 CODEC(T64, ZSTD(1)) COMMENT 'Steps whose cost is known.',
    ms Nested(bin Int16, steps UInt64) COMMENT 'Steps by floor(ln duration_ms / ln 1.1).',
    first_token_ms Nested(bin Int16, steps UInt64) COMMENT 'As ms.',
    version DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(hour)
ORDER BY (hour, tenant, agent, model, environment)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS tool_hours
(
    hour DateTime('UTC'),
    tenant LowCardinality(String),
    tool LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    calls UInt64 CODEC(T64, ZSTD(1)),
    failed UInt64 CODEC(T64, ZSTD(1)),
    error Nested(class LowCardinality(String), calls UInt64),
    ms Nested(bin Int16, calls UInt64) COMMENT 'Calls by floor(ln ms / ln 1.1).',
    version DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(hour)
ORDER BY (hour, tenant, tool, agent, model)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS tool_days
(
    day Date,
    tenant LowCardinality(String),
    tool LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    calls UInt64 CODEC(T64, ZSTD(1)),
    failed UInt64 CODEC(T64, ZSTD(1)),
    error Nested(class LowCardinality(String), calls UInt64),
    ms Nested(bin Int16, calls UInt64) COMMENT 'Calls by floor(ln ms / ln 1.1).',
    version DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(day)
ORDER BY (day, tenant, tool, agent, model)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS component_hours
(
    hour DateTime('UTC'),
    tenant LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    environment LowCardinality(String),
    policy_version Int32,
    split LowCardinality(String),
    reward_spec LowCardinality(String),
    trajectories UInt64 CODEC(T64, ZSTD(1)),
    component Nested(name LowCardinality(String), kind LowCardinality(String), n UInt64, total Float64, squares Float64, paid Float64) COMMENT 'n: trajectories with the component; total, squares: of its sum over a trajectory; paid: sum of value times weight.',
    version DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(hour)
ORDER BY (hour, tenant, agent, model, environment, policy_version, split, reward_spec)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS user_days
(
    day Date,
    tenant LowCardinality(String),
    user_key UInt64 CODEC(NONE) COMMENT 'sipHash64(user).',
    trajectories UInt64 CODEC(T64, ZSTD(1)),
    successes UInt64 CODEC(T64, ZSTD(1)),
    version DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(day)
ORDER BY (day, tenant, user_key)
SETTINGS non_replicated_deduplication_window = 1000;
