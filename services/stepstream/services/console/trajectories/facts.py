"""Query the store's tables for all facts about one trajectory."""

from collections.abc import Callable
from typing import Any

from stepstream.services.console.trajectories.status import Facts

Row = dict[str, Any]
Query = Callable[..., list[Row]]
"""Returns the rows of a query; its keywords are the query's parameters."""

_IT = "tenant = {tenant:String} AND trajectory_id = {id:String}"
_STEPS = f"""
SELECT count() AS count, minOrNull(s.occurred_at) AS first_at, maxOrNull(s.occurred_at) AS last_at,
    (SELECT countIf(end != 'open') > 0 FROM step_contents FINAL WHERE {_IT}) AS ended,
    countIf(s.trainable) AS trainable,
    arraySort(arrayDistinct(arrayFlatten(groupArray(s.flags)))) AS flags, any(s.group_id) AS group_id
FROM (SELECT * FROM steps FINAL WHERE {_IT}) AS s
"""
_FEEDBACK = f"""
SELECT name, value, nullIf(category, '') AS category, source, nullIf(step_index, -1) AS step_index, occurred_at,
    ifNull(demonstration, '') != '' AS demonstrates,
    event_id IN (SELECT retracts FROM feedback WHERE {_IT} AND retracts != '')
    OR source_event_id IN (SELECT retracts FROM feedback WHERE {_IT} AND retracts != '')
    AS retracted
FROM feedback FINAL WHERE {_IT}
ORDER BY occurred_at, event_id
"""
_AUDIT = f"""
SELECT action, source_topic, uniqExact(event_id) AS records, sumMap(found) AS finds
FROM governance_audit FINAL WHERE {_IT}
GROUP BY action, source_topic ORDER BY action
"""
_LABEL = f"""
SELECT revision, labelled_at AS occurred_at, group_id, tenant, consent, agent, environment, split, model,
    nullIf(version_min, -1) AS version_min, nullIf(version_max, -1) AS version_max, fidelity, end AS trajectory_end,
    closed_by, complete, success, reward, reward_spec, steps, sequences, flags, trainable, pending
FROM trajectories FINAL WHERE {_IT}
"""
_COMPONENTS = f"""
SELECT c.name AS name, any(c.kind) AS kind, any(c.source) AS source, sum(c.value) AS value, any(c.weight) AS weight,
    sum(c.value * c.weight) AS paid, min(c.final) AS final
FROM current_reward_components AS c WHERE {_IT}
GROUP BY c.name ORDER BY c.name
"""
_CURATION = """
SELECT action, reason, by, occurred_at FROM curation FINAL
WHERE tenant IN ({tenant:String}, '') AND trajectory_id = {id:String}
ORDER BY occurred_at, event_id
"""
_DECISIONS = f"""
SELECT occurred_at, model, root, revision, outcome, reason, learner_version, staleness, update, checkpoint_version,
    trained_revision, job
FROM training_decisions FINAL WHERE {_IT}
ORDER BY occurred_at, update, event_id
"""
_GROUP = """
SELECT
    (SELECT uniqExact(trajectory_id) FROM trajectories
        WHERE group_id = {group:String} AND tenant = {tenant:String}) AS labelled,
    (SELECT uniqExact(trajectory_id) FROM steps WHERE group_id = {group:String} AND tenant = {tenant:String}
        AND trajectory_id NOT IN (SELECT trajectory_id FROM trajectories
            WHERE group_id = {group:String} AND tenant = {tenant:String})) AS open
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


def facts_of(query: Query, tenant: str, trajectory_id: str) -> Facts:
    """Return the facts about a trajectory; all fields are empty if the tables have no row of it."""
    of = {"tenant": tenant, "id": trajectory_id}
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
        group=query(_GROUP, group=group, tenant=tenant)[0] if group else {"labelled": 0, "open": 0},
        decisions=query(_DECISIONS, **of),
        newest_version=newest[0]["newest"] if newest else None,
    )
