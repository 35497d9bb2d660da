"""Answer the page Curves: success by policy version with intervals, decisions about versions, and what was served."""

from stepstream.services.console.api.cohorts import cohorts
from stepstream.services.console.api.scope import chosen_model, models, tenants
from stepstream.services.console.api.sql import between, micros, ms, wilson
from stepstream.services.console.endpoints import TENANT, Answer, Call, reads

MOST_VERSIONS = 300
"""Versions that the page shows at most, the newest."""

_SUCCESS = f"""
SELECT c.split AS split, c.policy_version AS version, sum(c.n) AS trajectories, sum(c.known) AS outcomes,
    sum(c.good) AS successes, successes / outcomes AS rate,
    {wilson("successes", "outcomes", -1)} AS low, {wilson("successes", "outcomes", 1)} AS high,
    sum(c.reward) / trajectories AS reward, {ms("max(c.at)")} AS at
FROM ({{cohorts}}) AS c
WHERE c.model = {{model:String}} AND c.policy_version >= 0
    AND ({{agent:String}} = '' OR c.agent = {{agent:String}})
    AND ({{harness:String}} = '' OR c.harness_version = {{harness:String}})
GROUP BY split, version HAVING outcomes > 0 ORDER BY version DESC, split LIMIT {2 * MOST_VERSIONS}
"""
_AGENTS = f"""
SELECT agent FROM trajectories WHERE {TENANT} AND {between("opened_at")} AND model = {{model:String}}
GROUP BY agent ORDER BY count() DESC LIMIT 100
"""
_HARNESSES = f"""
SELECT harness_version FROM trajectories
WHERE {TENANT} AND {between("opened_at")} AND model = {{model:String}} AND harness_version != ''
GROUP BY harness_version ORDER BY max(opened_at) DESC LIMIT 100
"""
_CHECKPOINTS = f"""
SELECT version, parent_version, track, updates, trajectories, {ms("occurred_at")} AS at,
    substring(weights_sha256, 1, 12) AS sha256, size_bytes
FROM checkpoints FINAL WHERE model = {{model:String}} AND {between("occurred_at")} ORDER BY version DESC
LIMIT {MOST_VERSIONS}
"""
# The state before a decision tells what a rollback took back: all decisions of the model are read, which are few.
_ROLLOUTS = f"""
SELECT {ms("decided_at")} AS at, what, share, author, reason,
    if(what = 'canary', canary_version, stable_version) AS version,
    multiIf(what = 'canary', stable_version, what IN ('canary_end', 'canary_rollback'), canary_before,
        coalesce(stable_before, previous_stable_version)) AS previous
FROM
(
    SELECT occurred_at AS decided_at, stable_version, canary_version, previous_stable_version, canary_share AS share,
        author, reason, lagInFrame(canary_version) OVER states AS canary_before,
        lagInFrame(stable_version) OVER states AS stable_before,
        multiIf(action = 'canary' AND canary_version IS NULL, 'canary_end',
            action = 'rollback' AND canary_version IS NULL AND canary_before IS NOT NULL
                AND isNotDistinctFrom(stable_version, stable_before), 'canary_rollback',
            toString(action)) AS what
    FROM (SELECT * FROM rollouts FINAL WHERE model = {{model:String}} AND occurred_at < {micros("until")})
    WINDOW states AS (ORDER BY occurred_at, event_id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
)
WHERE decided_at >= {micros("since")} AND what IN ('promote', 'rollback', 'follow', 'canary', 'canary_end',
    'canary_rollback')
ORDER BY decided_at DESC LIMIT 200
"""
# A worker reports every few seconds: changes of the served version are looked for in the last 7 days at most.
_SWAPS = f"""
SELECT version, previous, {ms("min(at)")} AS at, uniqExact(worker) AS workers FROM
(
    SELECT toString(worker_id) AS worker, occurred_at AS at, assumeNotNull(version) AS version,
        lagInFrame(toNullable(assumeNotNull(version))) OVER
            (PARTITION BY worker_id ORDER BY occurred_at, event_id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS previous
    FROM worker_status
    WHERE model = {{model:String}} AND {between("occurred_at")}
        AND occurred_at >= now('UTC') - INTERVAL 7 DAY AND version IS NOT NULL
)
WHERE previous IS NOT NULL AND version != previous
GROUP BY version, previous ORDER BY at DESC LIMIT 200
"""


@reads("/api/curves")
def curves(call: Call) -> Answer:
    """Return success by version, the published versions, the decisions about them, and the swaps of workers.

    `rollouts` has no tenant: users of one tenant get no decisions.
    """
    since, until = call.time_range()
    known = models(call)
    bounds = {"since": since, "until": until, "model": chosen_model(call, known)}
    success = _SUCCESS.replace("{cohorts}", cohorts(since, until))
    return {
        "tenants": tenants(call),
        "models": known,
        "model": bounds["model"],
        "agents": [row["agent"] for row in call.query(_AGENTS, fresh_s=10.0, **bounds)],
        "harnesses": [row["harness_version"] for row in call.query(_HARNESSES, fresh_s=10.0, **bounds)],
        "success": call.query(
            success, fresh_s=2.0, agent=call.text("agent"), harness=call.text("harness", longest=256), **bounds
        ),
        "checkpoints": call.query_installation(_CHECKPOINTS, fresh_s=2.0, **bounds),
        "rollouts": call.query_installation(_ROLLOUTS, fresh_s=2.0, **bounds),
        "swaps": call.query_installation(_SWAPS, fresh_s=5.0, **bounds),
    }


ENDPOINTS = (curves,)
