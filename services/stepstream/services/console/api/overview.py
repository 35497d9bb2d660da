"""Answer the page Overview: is it learning, is it safe, what changed lately."""

from stepstream.services.console.api.cohorts import cohorts, staleness
from stepstream.services.console.api.scope import chosen_model, models, tenants
from stepstream.services.console.api.sql import between, ms, wilson
from stepstream.services.console.endpoints import TENANT, Answer, Call, reads

_STEPS = f"""
WITH toUnixTimestamp(now('UTC')) AS now
SELECT toInt64(toUnixTimestamp(toStartOfSecond(occurred_at))) * 1000 AS at, count() AS steps
FROM steps FINAL
WHERE {TENANT} AND occurred_at >= fromUnixTimestamp(toInt64(now) - 120) AND occurred_at < fromUnixTimestamp(now)
GROUP BY at ORDER BY at WITH FILL FROM toInt64(now - 120) * 1000 TO toInt64(now) * 1000 STEP 1000
"""
_TOTALS = """
SELECT sum(c.steps) AS steps, sum(c.n) AS trajectories, sum(c.known) AS outcomes, sum(c.good) AS successes,
    sum(c.response_tokens) AS response_tokens
FROM ({cohorts}) AS c
"""
# The newest versions with outcomes, held-out tasks before training tasks.
_SUCCESS = f"""
SELECT c.split AS split, c.policy_version AS version, sum(c.known) AS outcomes, sum(c.good) AS successes,
    successes / outcomes AS rate, {wilson("successes", "outcomes", -1)} AS low,
    {wilson("successes", "outcomes", 1)} AS high
FROM ({{cohorts}}) AS c
WHERE c.model = {{model:String}} AND c.policy_version >= 0
GROUP BY split, version HAVING outcomes > 0 ORDER BY version DESC, split LIMIT 20
"""
_ALARMS = f"""
SELECT alarm_id, state, agent, model, rising, falling, kind, rising_before, rising_after, falling_before, falling_after,
    since_version, message, {ms("raised_at")} AS raised_at, {ms("changed_at")} AS changed_at
FROM alarms_now WHERE {TENANT} ORDER BY state DESC, raised_at DESC LIMIT 20
"""
_ACTIVE_ALARMS = f"SELECT countIf(state = 'raised') AS alarms FROM alarms_now WHERE {TENANT}"
_CHANGES = f"""
SELECT * FROM
(
    SELECT {ms("occurred_at")} AS at, 'checkpoint' AS kind, model, toNullable(version) AS version, track AS detail
    FROM checkpoints FINAL WHERE {between("occurred_at")} ORDER BY at DESC LIMIT 20
    UNION ALL
    SELECT {ms("occurred_at")} AS at, toString(action) AS kind, model,
        coalesce(canary_version, stable_version) AS version,
        concat(author, if(reason = '', '', concat(': ', reason))) AS detail
    FROM rollouts FINAL WHERE {between("occurred_at")} ORDER BY at DESC LIMIT 20
)
ORDER BY at DESC LIMIT 20
"""


@reads("/api/overview")
def overview(call: Call) -> Answer:
    """Return the figures of the range, success of the newest versions, alarms and published versions."""
    since, until = call.time_range()
    known = models(call)
    model = chosen_model(call, known)
    bounds = {"since": since, "until": until}
    rows = cohorts(since, until)
    return {
        "tenants": tenants(call),
        "models": known,
        "model": model,
        "steps": call.query(_STEPS),
        "totals": call.query(_TOTALS.replace("{cohorts}", rows), fresh_s=2.0, **bounds)[0],
        "success": call.query(_SUCCESS.replace("{cohorts}", rows), model=model, fresh_s=2.0, **bounds),
        "staleness": call.query(staleness(since, until), model=model, fresh_s=3.0, **bounds)[0],
        "staleness_bound": call.services.settings.learner.staleness_bound,
        "alarms": call.query(_ALARMS, fresh_s=2.0),
        "active_alarms": call.query(_ACTIVE_ALARMS, fresh_s=2.0)[0]["alarms"],
        "changes": call.query_installation(_CHANGES, fresh_s=2.0, **bounds),
    }


ENDPOINTS = (overview,)
