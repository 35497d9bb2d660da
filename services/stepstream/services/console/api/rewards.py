"""Answer the page Rewards: reward components over time, and the alarms about them."""

from stepstream.services.console.api.sql import ms
from stepstream.services.console.endpoints import TENANT, Answer, Call, reads

_HOUR_US = 3_600_000_000
_SHORT_US = 4 * 24 * _HOUR_US
_FILTERS = ("agent", "model", "environment", "split")
_WHERE = " AND ".join(
    (
        TENANT,
        "hour >= toStartOfHour(fromUnixTimestamp64Micro({since:Int64}, 'UTC'))",
        "hour < fromUnixTimestamp64Micro({until:Int64}, 'UTC')",
        *(f"({{{name}:String}} = '' OR {name} = {{{name}:String}})" for name in _FILTERS),
    )
)
_COMPONENTS = f"""
SELECT toUnixTimestamp(toStartOfInterval(hour, toIntervalHour({{hours:UInt32}}))) * 1000 AS at, c.name AS name,
    c.kind AS kind, sum(c.n) AS n, sum(c.total) / n AS mean,
    sqrt(greatest(0., sum(c.squares) / n - mean * mean)) AS spread, sum(c.paid) / n AS paid
FROM (SELECT * FROM component_hours FINAL WHERE {_WHERE})
ARRAY JOIN component AS c
GROUP BY at, name, kind HAVING n > 0 ORDER BY kind, name, at LIMIT 20000
"""
_ALARMS = f"""
SELECT alarm_id, state, kind, environment, agent, model, split, reward_spec, rising, falling, rising_before,
    rising_after, falling_before, falling_after, trajectories_before, trajectories_after, p_value, threshold,
    baseline_version, since_version, message, {ms("raised_at")} AS raised_at, {ms("changed_at")} AS changed_at
FROM alarms_now ORDER BY state = 'raised' DESC, raised_at DESC LIMIT 100
"""


@reads("/api/rewards")
def rewards(call: Call) -> Answer:
    """Return the components by hour, for more than 4 days by day, and the alarms of the installation."""
    since, until = call.time_range("7d")
    chosen = {name: call.text(name, longest=256) for name in _FILTERS}
    hours = 1 if until - since <= _SHORT_US else 24
    return {
        "components": call.query(_COMPONENTS, fresh_s=3.0, since=since, until=until, hours=hours, **chosen),
        "hours": hours,
        "alarms": call.query_installation(_ALARMS, fresh_s=2.0),
        "sees_alarms": not call.user.tenant,
    }


ENDPOINTS = (rewards,)
