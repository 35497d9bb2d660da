"""Query the store's tables for all facts about one trajectory."""

from collections.abc import Callable
from typing import Any

from stepstream.services.console.trajectories.status import Facts

Row = dict[str, Any]
Query = Callable[..., list[Row]]
"""Returns the rows of a query; its keywords are the query's parameters."""

# Times of its steps in milliseconds since the Unix epoch that no trajectory is outside of: they exclude no row.
_ANY_TIME = (2 * 86_400_000, 4_000_000_000_000)
_DAY_MS = 86_400_000
_IT = "tenant = {tenant:String} AND trajectory_id = {id:String}"
_FIRST, _LAST = "fromUnixTimestamp64Milli({first:Int64}, 'UTC')", "fromUnixTimestamp64Milli({last:Int64}, 'UTC')"
_ITS_STEPS = f"{_IT} AND occurred_at >= {_FIRST} AND occurred_at <= {_LAST}"
_SINCE = "occurred_at >= fromUnixTimestamp64Milli({before:Int64}, 'UTC')"
_ABOUT_IT = f"{_IT} AND {_SINCE}"
_ITS_LABEL = f"{_IT} AND opened_at >= {_FIRST} AND opened_at <= {_LAST}"
_NEAR = "BETWEEN fromUnixTimestamp64Milli({before:Int64}, 'UTC') AND fromUnixTimestamp64Milli({after:Int64}, 'UTC')"
_STEPS = f"""
SELECT count() AS count, minOrNull(s.occurred_at) AS first_at, maxOrNull(s.occurred_at) AS last_at,
    (SELECT countIf(end != 'open') > 0 FROM step_contents FINAL WHERE {_ITS_STEPS}) AS ended,
    countIf(s.trainable) AS trainable,
    arraySort(arrayDistinct(arrayFlatten(groupArray(s.flags)))) AS flags, any(s.group_id) AS group_id
FROM (SELECT * FROM steps FINAL WHERE {_ITS_STEPS}) AS s
"""
_FEEDBACK = f"""
SELECT name, value, nullIf(category, '') AS category, source, nullIf(step_index, -1) AS step_index, occurred_at,
    ifNull(demonstration, '') != '' AS demonstrates,
    event_id IN (SELECT retracts FROM feedback WHERE {_ABOUT_IT} AND retracts != '')
    OR source_event_id IN (SELECT retracts FROM feedback WHERE {_ABOUT_IT} AND retracts != '')
    AS retracted
FROM feedback FINAL WHERE {_ABOUT_IT}
ORDER BY occurred_at, event_id
"""
_AUDIT = f"""
SELECT action, source_topic, uniqExact(event_id) AS records, sumMap(found) AS finds
FROM governance_audit FINAL WHERE {_ABOUT_IT}
GROUP BY action, source_topic ORDER BY action
"""
_LABEL = f"""
SELECT revision, labelled_at AS occurred_at, group_id, tenant, consent, agent, environment, split, model,
    nullIf(version_min, -1) AS version_min, nullIf(version_max, -1) AS version_max, fidelity, end AS trajectory_end,
    closed_by, complete, success, reward, reward_spec, steps, sequences, flags, trainable, pending
FROM trajectories FINAL WHERE {_ITS_LABEL}
"""
_COMPONENTS = f"""
SELECT c.name AS name, any(c.kind) AS kind, any(c.source) AS source, sum(c.value) AS value, any(c.weight) AS weight,
    sum(c.value * c.weight) AS paid, min(c.final) AS final
FROM current_reward_components AS c WHERE {_ITS_LABEL}
GROUP BY c.name ORDER BY c.name
"""
_CURATION = f"""
SELECT action, reason, by, occurred_at FROM curation FINAL
WHERE tenant IN ({{tenant:String}}, '') AND trajectory_id = {{id:String}} AND {_SINCE}
ORDER BY occurred_at, event_id
"""
_DECISIONS = f"""
SELECT occurred_at, model, root, revision, outcome, reason, learner_version, staleness, update, checkpoint_version,
    trained_revision, job
FROM training_decisions FINAL WHERE {_IT}
ORDER BY occurred_at, update, event_id
"""
_GROUP = f"""
SELECT
    (SELECT uniqExact(trajectory_id) FROM trajectories
        WHERE group_id = {{group:String}} AND tenant = {{tenant:String}} AND opened_at {_NEAR}) AS labelled,
    (SELECT uniqExact(trajectory_id) FROM steps
        WHERE group_id = {{group:String}} AND tenant = {{tenant:String}} AND occurred_at {_NEAR}
        AND trajectory_id NOT IN (SELECT trajectory_id FROM trajectories
            WHERE group_id = {{group:String}} AND tenant = {{tenant:String}} AND opened_at {_NEAR})) AS open
"""
_NEWEST = "SELECT max(version) AS newest FROM checkpoints WHERE model = {model:String} HAVING count() > 0"


def tenants_of(query: Query, trajectory_id: str) -> list[str]:
    """Return the tenants with steps, feedback or labels under this trajectory id, sorted; it reads all rows."""
    tables = " UNION ALL ".join(
        f"SELECT toString(tenant) AS tenant FROM {table} WHERE trajectory_id = {{id:String}}"
        for table in ("steps", "feedback", "trajectories")
    )
    rows = query(f"SELECT DISTINCT tenant FROM ({tables}) ORDER BY tenant", id=trajectory_id)
    return [str(row["tenant"]) for row in rows]


def facts_of(query: Query, tenant: str, trajectory_id: str, times_ms: tuple[int, int] = _ANY_TIME) -> Facts:
    """Return the facts about a trajectory; all fields are empty if the tables have no row of it.

    Args:
        query: queries the store.
        tenant: tenant of the trajectory.
        trajectory_id: its id.
        times_ms: times of its first and last step, in milliseconds since the Unix epoch, without which the tables are
            read whole. Feedback and decisions count from a day before the first, and the attempts of its group from a
            day before to a day after.
    """
    first, last = times_ms
    span = {"before": first - _DAY_MS, "after": last + _DAY_MS}
    of = {"tenant": tenant, "id": trajectory_id, "first": first, "last": last, **span}
    steps = query(_STEPS, **of)[0]
    label = next(iter(query(_LABEL, **of)), None)
    group = (label or steps)["group_id"]
    newest = query(_NEWEST, model=label["model"]) if label is not None else []
    return Facts(
        steps=steps,
        feedback=query(_FEEDBACK, **of),
        audit=query(_AUDIT, **of),
        label=label,
        components=query(_COMPONENTS, **of),
        curation=query(_CURATION, **of),
        group=query(_GROUP, group=group, tenant=tenant, **span)[0] if group else {"labelled": 0, "open": 0},
        decisions=query(_DECISIONS, **of),
        newest_version=newest[0]["newest"] if newest else None,
    )
