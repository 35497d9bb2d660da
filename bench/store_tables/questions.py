"""The questions of a dashboard, as a query of each design. `live` ones are asked every few seconds.

Each generated trajectory has an outcome, and none is a time-out. So `success` alone is the outcome here, as the score
`outcome` is in the other designs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clickhouse_connect.driver.client import Client

from stepstream.services.console.trajectories.search import PAGE, Search, search_query, windows

_WILSON = "(s + 1.9208 - 1.96 * sqrt(s * (n - s) / n + 0.9604)) / (n + 3.8416) AS low"


@dataclass(frozen=True)
class Question:
    """A question; `by_design` has the query of each design that can answer it, or a function that asks it.

    Parameters: `until`, the time of the newest trajectory, and `trajectory`, `tenant` and `begin`, a trajectory of the
    last day.
    """

    name: str
    live: bool
    by_design: Mapping[str, str | Callable[[Client, Mapping[str, Any]], object]]


def newest_failures(client: Client, given: Mapping[str, Any]) -> list[Any]:
    """Ask as the console's search does: of the last day, then of more days until a page is full."""
    until_ms = int(given["until"].timestamp() * 1000)
    rows: list[Any] = []
    for since_ms, _ in windows(None, until_ms):
        query, parameters = search_query(Search({}, "failure"), since_ms, until_ms)
        rows = list(client.query(query, {**parameters, "tenant": given["tenant"]}).result_rows)
        if len(rows) > PAGE:
            break
    return rows[:PAGE]


QUESTIONS = (
    Question(
        "success by version, all days",
        False,
        {
            "stepstream": f"""
SELECT agent, model, policy_version, sum(outcomes) AS n, sum(successes) AS s, {_WILSON} FROM trajectory_days FINAL
GROUP BY agent, model, policy_version HAVING n > 0""",
            "langfuse": f"""
SELECT e.name, e.model, e.version, count() AS n, sum(o.value) AS s, {_WILSON}
FROM (SELECT trace_id, name, provided_model_name AS model, version FROM lf_events FINAL WHERE type = 'AGENT') AS e
INNER JOIN (SELECT trace_id, value FROM lf_scores FINAL WHERE name = 'outcome') AS o ON o.trace_id = e.trace_id
GROUP BY e.name, e.model, e.version""",
            "tensorzero": f"""
SELECT function_name, variant_name, sum(count) AS n, n * avgMerge(feedback_mean) AS s, {_WILSON}
FROM tz_FeedbackByVariantStatistics WHERE metric_name = 'outcome' GROUP BY function_name, variant_name""",
        },
    ),
    Question(
        "steps a second, 2 min",
        True,
        {
            "stepstream": """
SELECT toStartOfSecond(occurred_at) AS second, count() FROM steps FINAL
WHERE occurred_at >= {until:DateTime64(3)} - INTERVAL 2 MINUTE GROUP BY second""",
            "langfuse": """
SELECT toStartOfSecond(start_time) AS second, count() FROM lf_events FINAL
WHERE start_time >= {until:DateTime64(3)} - INTERVAL 2 MINUTE AND type = 'GENERATION' GROUP BY second""",
            "tensorzero": """
SELECT minute, countMerge(count) FROM tz_ModelProviderStatistics
WHERE minute >= {until:DateTime64(3)} - INTERVAL 2 MINUTE GROUP BY minute""",
        },
    ),
    Question(
        "timeline, time known",
        True,
        {
            "stepstream": """
SELECT step_index, occurred_at, tools, duration_ms, cost_usd FROM steps FINAL
WHERE tenant = {tenant:String} AND trajectory_id = {trajectory:String}
    AND occurred_at BETWEEN {begin:DateTime64(3)} - INTERVAL 5 MINUTE AND {begin:DateTime64(3)} + INTERVAL 10 MINUTE
ORDER BY step_index""",
            "langfuse": """
SELECT span_id, start_time, name, end_time, cost_details FROM lf_events FINAL
WHERE project_id = {tenant:String} AND trace_id = {trajectory:String}
    AND start_time BETWEEN {begin:DateTime64(3)} - INTERVAL 5 MINUTE AND {begin:DateTime64(3)} + INTERVAL 10 MINUTE
ORDER BY start_time""",
            "tensorzero": """
SELECT id, timestamp, processing_time_ms FROM tz_ChatInference
WHERE (function_name, variant_name, episode_id) IN (SELECT function_name, variant_name, toUUID({trajectory:String})
    FROM tz_InferenceByEpisodeId WHERE episode_id_uint = toUInt128(toUUID({trajectory:String}))) ORDER BY id""",
        },
    ),
    Question(
        "tools by hour with p95, 24 h",
        False,
        {
            "stepstream": """
SELECT hour, tool, sum(calls), sum(failed), sumMap(ms.bin, ms.calls) AS bins,
    pow(1.1, bins.1[arrayFirstIndex(c -> c >= 0.95 * arraySum(bins.2), arrayCumSum(bins.2))]) AS p95
FROM tool_hours FINAL WHERE hour >= {until:DateTime64(3)} - INTERVAL 1 DAY GROUP BY hour, tool""",
            "langfuse": """
SELECT toStartOfHour(start_time) AS hour, name, count(), countIf(level = 'ERROR'),
    quantile(0.95)(date_diff('millisecond', start_time, end_time)) FROM lf_events FINAL
WHERE type = 'TOOL' AND start_time >= {until:DateTime64(3)} - INTERVAL 1 DAY GROUP BY hour, name""",
        },
    ),
    Question(
        "cost a success, 7 d",
        False,
        {
            "stepstream": """
SELECT model, policy_version, toFloat64(sum(cost_usd)) / sum(successes),
    sum(prompt_tokens + response_tokens) / sum(successes)
FROM trajectory_hours FINAL WHERE hour >= {until:DateTime64(3)} - INTERVAL 7 DAY GROUP BY model, policy_version""",
            "langfuse": """
SELECT g.model, g.version, toFloat64(sum(g.cost)) / sum(s.value), sum(g.tokens) / sum(s.value)
FROM (SELECT trace_id, any(provided_model_name) AS model, any(version) AS version, sum(total_cost) AS cost,
    sum(usage_details['total']) AS tokens FROM lf_events FINAL
    WHERE type = 'GENERATION' AND start_time >= {until:DateTime64(3)} - INTERVAL 7 DAY GROUP BY trace_id) AS g
INNER JOIN (SELECT trace_id, value FROM lf_scores FINAL WHERE name = 'outcome'
    AND timestamp >= {until:DateTime64(3)} - INTERVAL 7 DAY) AS s ON s.trace_id = g.trace_id
GROUP BY g.model, g.version""",
            "tensorzero": """
SELECT i.variant, toFloat64(sum(i.cost)) / any(f.successes), sum(i.tokens) / any(f.successes)
FROM (SELECT c.variant_name AS variant, m.cost AS cost, m.input_tokens + m.output_tokens AS tokens
    FROM tz_ChatInference AS c
    INNER JOIN tz_ModelInference AS m ON m.inference_id = c.id
    WHERE c.timestamp >= {until:DateTime64(3)} - INTERVAL 7 DAY
        AND m.timestamp >= {until:DateTime64(3)} - INTERVAL 7 DAY) AS i
INNER JOIN (SELECT variant_name AS variant, sum(count) * avgMerge(feedback_mean) AS successes
    FROM tz_FeedbackByVariantStatistics
    WHERE metric_name = 'outcome' AND minute >= {until:DateTime64(3)} - INTERVAL 7 DAY GROUP BY variant)
    AS f ON f.variant = i.variant GROUP BY i.variant""",
        },
    ),
    Question(
        "newest 50 of a tenant, 7 d (Stepstream: the last day first)",
        True,
        {
            "stepstream": newest_failures,
            "langfuse": """
SELECT e.trace_id, e.start_time, e.name FROM (SELECT trace_id, start_time, name FROM lf_events FINAL
    WHERE project_id = {tenant:String} AND type = 'AGENT' AND start_time >= {until:DateTime64(3)} - INTERVAL 7 DAY) AS e
INNER JOIN (SELECT trace_id FROM lf_scores FINAL WHERE project_id = {tenant:String} AND name = 'outcome' AND value = 0
    AND timestamp >= {until:DateTime64(3)} - INTERVAL 7 DAY) AS s ON s.trace_id = e.trace_id
ORDER BY e.start_time DESC LIMIT 50""",
            "tensorzero": """
SELECT episode_id, function_name, max(timestamp) AS newest FROM tz_ChatInference
WHERE timestamp >= {until:DateTime64(3)} - INTERVAL 7 DAY AND tags['tenant'] = {tenant:String}
    AND episode_id IN (SELECT target_id FROM tz_FloatMetricFeedback WHERE metric_name = 'outcome' AND value = 0
        AND timestamp >= {until:DateTime64(3)} - INTERVAL 7 DAY)
GROUP BY episode_id, function_name ORDER BY newest DESC LIMIT 50""",
        },
    ),
    Question(
        "pass^4 by task, last day",
        False,
        {
            "stepstream": """
SELECT avg(c * (c - 1) * (c - 2) * (c - 3) / (n * (n - 1) * (n - 2) * (n - 3))) FROM (
    SELECT task_id, countIf(success IS NOT NULL) AS n, countIf(success) AS c FROM trajectories FINAL
    WHERE opened_at >= {until:DateTime64(3)} - INTERVAL 1 DAY GROUP BY task_id HAVING n >= 4)""",
            "langfuse": """
SELECT avg(c * (c - 1) * (c - 2) * (c - 3) / (n * (n - 1) * (n - 2) * (n - 3))) FROM (
    SELECT e.metadata_values[1] AS task, count() AS n, sum(s.value) AS c
    FROM (SELECT trace_id, metadata_values FROM lf_events FINAL
        WHERE type = 'AGENT' AND start_time >= {until:DateTime64(3)} - INTERVAL 1 DAY) AS e
    INNER JOIN (SELECT trace_id, value FROM lf_scores FINAL WHERE name = 'outcome'
        AND timestamp >= {until:DateTime64(3)} - INTERVAL 1 DAY) AS s ON s.trace_id = e.trace_id
    GROUP BY task HAVING n >= 4)""",
            "tensorzero": """
SELECT avg(c * (c - 1) * (c - 2) * (c - 3) / (n * (n - 1) * (n - 2) * (n - 3))) FROM (
    SELECT e.task, count() AS n, sum(f.value) AS c
    FROM (SELECT episode_id, any(tags['task']) AS task FROM tz_ChatInference
        WHERE timestamp >= {until:DateTime64(3)} - INTERVAL 1 DAY GROUP BY episode_id) AS e
    INNER JOIN (SELECT target_id, value FROM tz_FloatMetricFeedback
        WHERE metric_name = 'outcome' AND timestamp >= {until:DateTime64(3)} - INTERVAL 1 DAY) AS f
        ON f.target_id = e.episode_id
    GROUP BY e.task HAVING n >= 4)""",
        },
    ),
    Question(
        "reward components, last hour",
        True,
        {
            "stepstream": """
SELECT name, sum(n), sum(total) FROM component_hours FINAL
ARRAY JOIN component.name AS name, component.n AS n, component.total AS total
WHERE hour >= toStartOfHour({until:DateTime64(3)} - INTERVAL 1 HOUR) GROUP BY name""",
            "langfuse": """
SELECT name, count(), sum(value) FROM lf_scores FINAL
WHERE timestamp >= {until:DateTime64(3)} - INTERVAL 1 HOUR
    AND toDate(timestamp) >= toDate({until:DateTime64(3)} - INTERVAL 1 HOUR) GROUP BY name""",
            "tensorzero": """
SELECT metric_name, sum(count) AS n, n * avgMerge(feedback_mean) FROM tz_FeedbackByVariantStatistics
WHERE minute >= {until:DateTime64(3)} - INTERVAL 1 HOUR GROUP BY metric_name""",
        },
    ),
    Question(
        "totals",
        False,
        {
            "stepstream": """
SELECT sum(steps), sum(trajectories), sum(cost_usd) FROM trajectory_days FINAL""",
            "langfuse": """
SELECT countIf(type = 'GENERATION'), countIf(type = 'AGENT'), sum(total_cost) FROM lf_events FINAL""",
            "tensorzero": """
SELECT countMerge(count), sumMerge(total_input_tokens), sumMerge(total_output_tokens)
FROM tz_ModelProviderStatistics""",
        },
    ),
)
