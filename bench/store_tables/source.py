"""Generate a fleet's trajectories inside ClickHouse, as expressions of their number.

Everything about a trajectory is a function of its number, so that each design gets the same rows, without a copy.
50 agents of skewed size, 5 tenants, 4 models, 200 versions, 20 tools, 103,000 users, 1 to 13 steps a trajectory (7 on
average), 5,000 tasks of 40 families, a tool call in seven of ten steps, four reward components and on average 0.46
feedback events a trajectory, no texts.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

STEPS_OF_ONE = 7
COMPONENTS = ("outcome", "format", "judge", "length")
VERSIONS = 200
SIGNALS = """
    if(cityHash64(n, 'confidence') % 10 = 0, [('confidence', cityHash64(n, 'stated') % 101 / 100, '', 0)], []),
    if(cityHash64(n, 'perturbation') % 20 = 0,
        [('perturbation', 1., ['fault', 'environment', 'prompt'][cityHash64(n, 'kind') % 3 + 1], 0)], []),
    if(cityHash64(n, 'critical') % 20 = 0, [('policy_critical_actions', 1. + n % 4, '', 0)], []),
    if(cityHash64(n, 'critical') % 200 = 0, [('violation', cityHash64(n, 'severity') % 11 / 10, '', 60)], []),
    if(cityHash64(n, 'attack') % 100 = 0,
        [('attack_resisted', toFloat64(cityHash64(n, 'resisted') % 5 > 0), '', 60)], []),
    if(cityHash64(n, 'production') % 20 = 0, [(['reverted', 'dissatisfied', 'abandoned', 'escalated', 'edited'][
        cityHash64(n, 'signal') % 5 + 1], 1., '', toUInt32(cityHash64(n, 'later') % 86400))], []),
    if(cityHash64(n, 'change') % 20 = 0, [('proposed', 100., '', 0),
        ('kept', 60. + cityHash64(n, 'kept') % 41, '', 3600),
        ('kept', 40. + cityHash64(n, 'kept') % 41, '', 86400)], []),
    if(cityHash64(n, 'assigned') % 20 = 0,
        [('assigned', toFloat64(cityHash64(n, 'on') % 2), concat('skill-', toString(n % 5)), 0)], [])
"""
"""Feedback of a trajectory: arrays of name, value, category and seconds after its end."""
ROWS = "bench_rows"
"""Table of the generated trajectories, from which each design is filled."""


@dataclass(frozen=True)
class Source:
    """A number of trajectories that end now."""

    trajectories: int
    days: int
    until: datetime

    @staticmethod
    def of(steps: int, days: int) -> "Source":
        """Return a source of about `steps` steps over some days."""
        return Source(steps // STEPS_OF_ONE, days, datetime.now(UTC).replace(microsecond=0))

    @property
    def since(self) -> datetime:
        """Return the time of the first trajectory."""
        return self.until - timedelta(days=self.days)

    def chunks(self) -> list[tuple[int, int]]:
        """Return first number and count of the trajectories of each day."""
        bounds = [self.trajectories * day // self.days for day in range(self.days + 1)]
        return [(first, end - first) for first, end in pairwise(bounds)]

    def trajectory(self, first: int, count: int) -> str:
        """Return a SELECT of trajectories, a row each, of those that `load.generate` stored."""
        return f"SELECT * FROM {ROWS} WHERE n >= {first} AND n < {first + count}"

    def generated(self, first: int, count: int) -> str:
        """Return a SELECT that computes trajectories, a row each."""
        begin_ms, span_ms = int(self.since.timestamp() * 1000), self.days * 86_400_000
        return f"""
SELECT
    number AS n,
    {begin_ms} + intDiv(number * {span_ms}, {self.trajectories}) AS opened_ms,
    fromUnixTimestamp64Milli(toInt64(opened_ms), 'UTC') AS opened_at,
    lower(hex(toUInt64(opened_ms))) AS stamp,
    leftPad(lower(hex(cityHash64(number, 'id'))), 16, '0') AS noise,
    concat(substring(stamp, -12, 8), '-', substring(stamp, -4, 4), '-7', substring(noise, 1, 3), '-8',
        substring(noise, 4, 3), '-', substring(noise, 7, 10), '00') AS trajectory_id,
    toUInt32(50 * pow(cityHash64(number, 'agent') / pow(2, 64), 2.5)) AS agent_number,
    concat('agent-', toString(agent_number)) AS agent,
    concat('tenant-', toString(agent_number % 5)) AS tenant,
    concat('model-', toString(agent_number % 4)) AS model,
    concat('environment-', toString(agent_number % 10)) AS environment,
    concat('h', toString(agent_number % 3)) AS harness_version,
    toInt32(intDiv(number * {VERSIONS}, {self.trajectories})) AS version,
    concat('user-', toString(cityHash64(number, 'user') % 103000)) AS user,
    cityHash64(intDiv(number, 8), 'task') % 5000 AS task_number,
    concat('family-', toString(task_number % 40), '/task-', toString(task_number)) AS task_id,
    concat(task_id, '/', toString(intDiv(number, 8))) AS group_id,
    cityHash64(number, 'success') / pow(2, 64) < 0.3 + 0.4 * version / {VERSIONS} AS success,
    1 + cityHash64(number, 'steps') % 13 AS length,
    arrayMap(i -> toUInt32(50 + cityHash64(n, i, 'prompt') % 400), range(length)) AS prompt_tokens,
    arrayMap(i -> toUInt32(20 + cityHash64(n, i, 'response') % 200), range(length)) AS response_tokens,
    arrayMap(i -> toFloat32(200 + cityHash64(n, i, 'ms') % 3000), range(length)) AS step_ms,
    arrayMap(i -> if(cityHash64(n, i, 'call') % 10 < 7, concat('tool-', toString(cityHash64(n, i, 'tool') % 20)), ''),
        range(length)) AS tools,
    arrayMap(i -> if(cityHash64(n, i, 'error') % 12 = 0, 'timeout', ''), range(length)) AS tool_errors,
    arrayMap(i -> toFloat32(exp(3 + 4 * cityHash64(n, i, 'tool_ms') / pow(2, 64))), range(length)) AS tool_ms,
    arrayMap(i -> toDecimal64((prompt_tokens[i + 1] + 4 * response_tokens[i + 1]) * 1e-6, 9), range(length)) AS costs,
    arrayMap(i -> toInt64(opened_ms + 8000 * i), range(length)) AS step_at_ms,
    [toFloat32(success), toFloat32(cityHash64(n, 'format') % 2), toFloat32(cityHash64(n, 'judge') % 11 / 10),
        toFloat32(length / 13)] AS component_values
FROM numbers({first}, {count})"""

    def step(self, first: int, count: int) -> str:
        """Return a SELECT of steps, a row each: `i` is the index, the other names are of one step."""
        return f"""
SELECT
    n, i, trajectory_id, agent, tenant, model, environment, harness_version, version, user, task_id, group_id, success,
    length, fromUnixTimestamp64Milli(step_at_ms[i + 1], 'UTC') AS occurred_at, step_at_ms[i + 1] AS at_ms,
    cityHash64(n, i, 'event') AS source_key, prompt_tokens[i + 1] AS prompt, response_tokens[i + 1] AS response,
    step_ms[i + 1] AS ms, tools[i + 1] AS tool, tool_errors[i + 1] AS tool_error, tool_ms[i + 1] AS call_ms,
    costs[i + 1] AS cost,
    concat(substring(lower(hex(toUInt64(at_ms))), -12, 8), '-', substring(lower(hex(toUInt64(at_ms))), -4, 4), '-7',
        substring(noise, 1, 3), '-9', substring(noise, 4, 3), '-', substring(noise, 7, 10),
        leftPad(lower(hex(toUInt8(i))), 2, '0')) AS step_id
FROM ({self.trajectory(first, count)}) ARRAY JOIN range(length) AS i"""

    def feedback(self, first: int, count: int) -> str:
        """Return a SELECT of feedback events, a row each; those that would come after the source's end are left out."""
        until_ms = int(self.until.timestamp() * 1000)
        return f"""
SELECT
    n, tenant, trajectory_id, environment, signal.1 AS name, signal.2 AS value, signal.3 AS category,
    fromUnixTimestamp64Milli(toInt64(opened_ms + 8000 * length + 1000 * signal.4), 'UTC') AS occurred_at,
    toString(reinterpretAsUUID(MD5(concat(trajectory_id, toString(number))))) AS event_id
FROM ({self.trajectory(first, count)})
ARRAY JOIN CAST(arrayConcat({SIGNALS}), 'Array(Tuple(String, Float64, String, UInt32))') AS signal,
    arrayEnumerate(arrayConcat({SIGNALS})) AS number
WHERE opened_ms + 8000 * length + 1000 * signal.4 < {until_ms}"""
