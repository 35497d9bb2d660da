"""Generate trajectories, and fill the tables of each design with them, a day at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from clickhouse_connect.driver.client import Client

from store_tables.source import COMPONENTS, ROWS, Source

_STEPS = """
INSERT INTO steps (tenant, trajectory_id, step_index, source_key, governed_by, occurred_at, agent, model, environment,
    harness_version, track, split, fidelity, consent, user, task_id, group_id, version_min, version_max, shared_tokens,
    prompt_tokens, response_tokens, logprob_sum, tools, finish_reason, error, duration_ms,
    first_token_ms, cost_usd, trainable)
SELECT tenant, trajectory_id, i, source_key, 1, occurred_at, agent, model, environment, harness_version, 'stable',
    if(n % 10, 'train', 'eval'), 'token', 'train', user, task_id, group_id, version, version, 0, prompt, response,
    -0.4 * response, if(tool = '', [], [tool]), 'stop', '', ms, ms / 8, cost, true
FROM ({step})"""
_TRAJECTORIES = """
INSERT INTO trajectories (tenant, trajectory_id, revision, label_id, opened_at, started_at, ended_at, labelled_at,
    agent, model, environment, harness_version, track, split, fidelity, consent, user, task_id, group_id, version_min,
    version_max, end, closed_by, complete, success, reward, reward_spec, trainable, steps, sequences, errors,
    prompt_tokens, response_tokens, cost_usd, duration_ms, step.index, step.reward, step.return_to_go, step.tokens,
    step.event_key, call.step, call.tool, call.error, call.ms, component.step, component.name, component.kind,
    component.source, component.value, component.raw, component.weight, component.final)
SELECT tenant, trajectory_id, 1, generateUUIDv7(n), opened_at, opened_at,
    fromUnixTimestamp64Milli(toInt64(opened_ms + 8000 * length), 'UTC') AS ended, ended, agent, model, environment,
    harness_version, 'stable', if(n % 10, 'train', 'eval'), 'token', 'train', user, task_id, group_id, version, version,
    'terminated', 'end', true, success, arraySum(component_values), 'bench', true, length, 1, 0,
    arraySum(prompt_tokens), arraySum(response_tokens), arraySum(costs), arraySum(step_ms), range(length),
    arrayMap(i -> toFloat32(i = length - 1 AND success), range(length)),
    arrayMap(i -> toFloat32(success), range(length)), response_tokens,
    arrayMap(i -> toUInt32(cityHash64(n, i)), range(length)),
    arrayFilter((i, tool) -> tool != '', range(length), tools), arrayFilter(tool -> tool != '', tools),
    arrayFilter((error, tool) -> tool != '', tool_errors, tools), arrayFilter((ms, tool) -> tool != '', tool_ms, tools),
    arrayMap(v -> length - 1, component_values), {components}, arrayMap(v -> 'rule', component_values),
    arrayMap(v -> 'bench', component_values), component_values, component_values,
    arrayMap(v -> 0.25, component_values), arrayMap(v -> true, component_values)
FROM ({trajectory})"""
_FEEDBACK = """
INSERT INTO feedback (tenant, trajectory_id, source_key, governed_by, occurred_at, event_id, source_event_id,
    step_index, producer, consent, name, value, category, source)
SELECT tenant, trajectory_id, cityHash64(event_id), 1, occurred_at, toString(reinterpretAsUUID(MD5(event_id))),
    event_id, -1, 'bench', 'train', name, value, category, 'bench'
FROM ({feedback})"""
_LF_EVENT = """
INSERT INTO lf_events (project_id, trace_id, span_id, parent_span_id, start_time, end_time, name, type, environment,
    version, trace_name, user_id, session_id, level, provided_model_name, usage_details, cost_details, tool_call_names,
    metadata_names, metadata_values, event_ts, completion_start_time)
SELECT tenant, trajectory_id, {values} FROM ({rows})"""
_LF_AGENTS = _LF_EVENT.format(
    values="""concat('root-', trajectory_id), '', opened_at,
    fromUnixTimestamp64Milli(toInt64(opened_ms + 8000 * length), 'UTC'), agent, 'AGENT', environment, toString(version),
    agent, user, group_id, 'DEFAULT', model, map(), map(), [], ['task', 'harness'], [task_id, harness_version],
    opened_at, NULL""",
    rows="{trajectory}",
)
_LF_GENERATIONS = _LF_EVENT.format(
    values="""step_id, concat('root-', trajectory_id), occurred_at, occurred_at + toIntervalMillisecond(ms),
    agent, 'GENERATION', environment, toString(version), agent, user, group_id, 'DEFAULT', model,
    map('input', prompt, 'output', response, 'total', prompt + response), map('total', toDecimal64(cost, 12)),
    if(tool = '', [], [tool]), ['task', 'harness'], [task_id, harness_version], occurred_at,
    occurred_at + toIntervalMillisecond(ms / 8)""",
    rows="{step}",
)
_LF_TOOLS = _LF_EVENT.format(
    values="""concat('tool-', step_id), step_id, occurred_at, occurred_at + toIntervalMillisecond(call_ms), tool,
    'TOOL', environment, toString(version), agent, user, group_id, if(tool_error = '', 'DEFAULT', 'ERROR'), '', map(),
    map(), [], [], [], occurred_at, NULL""",
    rows="SELECT * FROM ({step}) WHERE tool != ''",
)
_LF_SCORES = """
INSERT INTO lf_scores (id, timestamp, project_id, environment, trace_id, name, value, source, data_type, event_ts)
SELECT concat(name, '-', trajectory_id), opened_at, tenant, environment, trajectory_id, name, value, 'API', 'NUMERIC',
    opened_at
FROM ({trajectory}) ARRAY JOIN {components} AS name, component_values AS value"""
_LF_FEEDBACK = """
INSERT INTO lf_scores (id, timestamp, project_id, environment, trace_id, name, value, source, data_type, event_ts)
SELECT event_id, occurred_at, tenant, environment, trajectory_id, name, value, 'ANNOTATION', 'NUMERIC', occurred_at
FROM ({feedback})"""
_TZ_CHAT = """
INSERT INTO tz_ChatInference (id, function_name, variant_name, episode_id, processing_time_ms, tags)
SELECT toUUID(step_id), agent, concat(model, '@', toString(version)), toUUID(trajectory_id), toUInt32(ms),
    map('task', task_id, 'user', user, 'tenant', tenant, 'harness', harness_version)
FROM ({step})"""
_TZ_MODEL = """
INSERT INTO tz_ModelInference (id, inference_id, model_name, model_provider_name, input_tokens, output_tokens,
    response_time_ms, ttft_ms, cost)
SELECT toUUID(step_id), toUUID(step_id), model, 'own', prompt, response, toUInt32(ms), toUInt32(ms / 8), cost
FROM ({step})"""
_TZ_FEEDBACK = """
INSERT INTO tz_FloatMetricFeedback (id, target_id, metric_name, value)
SELECT toUUID(trajectory_id), toUUID(trajectory_id), name, value
FROM ({trajectory}) ARRAY JOIN {components} AS name, component_values AS value"""
_TZ_SIGNALS = """
INSERT INTO tz_FloatMetricFeedback (id, target_id, metric_name, value)
SELECT dateTimeToUUIDv7(toDateTime(occurred_at)), toUUID(trajectory_id), name, value FROM ({feedback})"""
# TensorZero's own view looks the variant up in its tables; here the source knows it.
_TZ_STATISTICS = """
INSERT INTO tz_FeedbackByVariantStatistics
SELECT agent, concat(model, '@', toString(version)) AS variant, name, toStartOfMinute(opened_at) AS minute,
    avgState(value), count()
FROM ({trajectory}) ARRAY JOIN {components} AS name, component_values AS value
GROUP BY agent, variant, name, minute"""


@dataclass(frozen=True)
class Design:
    """Tables of one design."""

    name: str
    schema: str
    """File with its tables; empty: the product's migrations make them."""
    inserts: tuple[str, ...]
    tables: tuple[str, ...]
    """Tables whose bytes count; `%` is a wildcard."""


DESIGNS: Mapping[str, Design] = {
    design.name: design
    for design in (
        Design(
            "stepstream",
            "",
            (_STEPS, _TRAJECTORIES, _FEEDBACK),
            (
                "steps",
                "trajectories",
                "feedback",
                "trajectory_times",
                "cohorts",
                "cohort_times",
                "%_hours",
                "%_days",
                "%_cohorts",
            ),
        ),
        Design(
            "langfuse", "langfuse.sql", (_LF_AGENTS, _LF_GENERATIONS, _LF_TOOLS, _LF_SCORES, _LF_FEEDBACK), ("lf_%",)
        ),
        Design(
            "tensorzero", "tensorzero.sql", (_TZ_CHAT, _TZ_MODEL, _TZ_FEEDBACK, _TZ_SIGNALS, _TZ_STATISTICS), ("tz_%",)
        ),
    )
}


def create(client: Client, design: Design) -> None:
    """Create the tables of a design other than the product's."""
    if design.schema:
        text = (resources.files("store_tables") / design.schema).read_text("utf-8")
        for statement in text.split(";\n"):
            if statement.strip():
                client.command(statement)


def generate(client: Client, source: Source) -> None:
    """Compute the trajectories of a source once: no design's time includes it."""
    client.command(f"CREATE TABLE {ROWS} ENGINE = MergeTree ORDER BY n EMPTY AS {source.generated(0, 1)}")
    for first, count in source.chunks():
        client.command(f"INSERT INTO {ROWS} {source.generated(first, count)}")


def fill(client: Client, design: Design, source: Source) -> None:
    """Insert all rows of a source."""
    names = "[" + ", ".join(f"'{name}'" for name in COMPONENTS) + "]"
    for first, count in source.chunks():
        rows = {
            "trajectory": source.trajectory(first, count),
            "step": source.step(first, count),
            "feedback": source.feedback(first, count),
            "components": names,
        }
        for insert in design.inserts:
            client.command(insert.format(**rows), settings={"max_partitions_per_insert_block": 0})


def merge_past_weeks(client: Client) -> None:
    """Merge the parts of each past week of the facts.

    The store does so an hour after a week's last rows (`min_age_to_force_merge_seconds`): no need to wait.
    """
    found = client.query(
        "SELECT table, partition_id FROM system.parts WHERE active AND database = currentDatabase() AND "
        "table IN ('steps', 'trajectories', 'feedback') AND partition_id < toString(toYYYYMMDD(toMonday(today()))) "
        "GROUP BY table, partition_id HAVING count() > 1 ORDER BY table, partition_id"
    )
    for table, week in found.result_rows:
        client.command(f"OPTIMIZE TABLE {table} PARTITION ID '{week}' FINAL")


def stored_bytes(client: Client, design: Design) -> int:
    """Return the bytes of a design's active parts."""
    where = " OR ".join(f"table LIKE '{name}'" for name in design.tables)
    query = f"SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = currentDatabase() AND ({where})"
    [(size,)] = client.query(query).result_rows
    return int(size)
