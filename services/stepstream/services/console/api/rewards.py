"""Answer the page Rewards: reward components over time, and the alarms about them."""

from stepstream.services.console.api.buckets import Source, points
from stepstream.services.console.api.scope import tenants
from stepstream.services.console.api.sql import between, hours, ms
from stepstream.services.console.endpoints import TENANT, Answer, Call, reads

_FILTERS = ("agent", "model", "environment", "split")
_EQUAL = [f"({{{name}:String}} = '' OR {name} = {{{name}:String}})" for name in _FILTERS]
_WHERE = " AND ".join((TENANT, hours(), *_EQUAL))
_ROLLUP = Source(
    f"SELECT toInt64(max(hour)) - toInt64(min(hour)) AS extent FROM component_hours WHERE {_WHERE}",
    f"""
SELECT toUnixTimestamp(toStartOfInterval(hour, toIntervalSecond({{bucket:UInt32}}))) * 1000 AS at, c.name AS name,
    c.kind AS kind, sum(c.n) AS n, sum(c.total) / n AS mean,
    sqrt(greatest(0., sum(c.squares) / n - mean * mean)) AS spread, sum(c.paid) / n AS paid
FROM (SELECT * FROM component_hours FINAL WHERE {_WHERE})
ARRAY JOIN component AS c
GROUP BY at, name, kind HAVING n > 0 ORDER BY kind, name, at LIMIT 20000
""",
)
_OF_FACTS = " AND ".join((TENANT, between("opened_at"), *_EQUAL))
_FACTS = Source(
    f"SELECT dateDiff('second', min(opened_at), max(opened_at)) AS extent FROM trajectories WHERE {_OF_FACTS}",
    f"""
SELECT at, name, kind, count() AS n, sum(value) / n AS mean,
    sqrt(greatest(0., sum(value * value) / n - mean * mean)) AS spread, sum(worth) / n AS paid
FROM
(
    SELECT toUnixTimestamp(toStartOfInterval(opened_at, toIntervalSecond({{bucket:UInt32}}))) * 1000 AS at,
        toString(c.name) AS name, toString(c.kind) AS kind, sum(toFloat64(c.value)) AS value,
        sum(toFloat64(c.value) * c.weight) AS worth
    FROM (SELECT * FROM trajectories FINAL WHERE {_OF_FACTS}) ARRAY JOIN component AS c
    GROUP BY at, tenant, trajectory_id, name, kind
)
GROUP BY at, name, kind ORDER BY kind, name, at LIMIT 20000
""",
)
_ALARMS = f"""
SELECT alarm_id, state, kind, tenant, environment, agent, model, split, reward_spec, rising, falling, rising_before,
    rising_after, falling_before, falling_after, trajectories_before, trajectories_after, p_value, threshold,
    baseline_version, since_version, message, {ms("raised_at")} AS raised_at, {ms("changed_at")} AS changed_at
FROM alarms_now WHERE {TENANT} ORDER BY state = 'raised' DESC, raised_at DESC LIMIT 100
"""


@reads("/api/rewards")
def rewards(call: Call) -> Answer:
    """Return the components over time, in points of `bucket_s` seconds, and the alarms."""
    since, until = call.time_range("7d")
    of = {"since": since, "until": until, **{name: call.text(name, longest=256) for name in _FILTERS}}
    found = points(call, _ROLLUP, _FACTS, **of)
    return {
        "tenants": tenants(call, "7d"),
        "components": found["points"],
        "bucket_s": found["bucket_s"],
        "alarms": call.query(_ALARMS, fresh_s=2.0),
    }


ENDPOINTS = (rewards,)
