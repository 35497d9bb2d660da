"""Answer the page Fleet: who serves what, which versions are published, and what the learner does."""

from stepstream.services.console.api.sql import between, ms
from stepstream.services.console.endpoints import Answer, Call, reads

# The broker's clock dates a status: the clocks of workers differ.
_WORKERS = f"""
SELECT worker_id, {ms("max(w.written_at)")} AS seen_at,
    argMax(engine, (w.written_at, event_id)) AS engine,
    argMax(model, (w.written_at, event_id)) AS model,
    argMax(tuple(version), (w.written_at, event_id)).1 AS version,
    argMax(tuple(newest_version), (w.written_at, event_id)).1 AS newest_version,
    argMax(state, (w.written_at, event_id)) AS state,
    argMax(tuple(reason), (w.written_at, event_id)).1 AS reason,
    argMax(requests_in_flight, (w.written_at, event_id)) AS requests_in_flight
FROM worker_status AS w WHERE {between("w.written_at")} GROUP BY worker_id ORDER BY worker_id LIMIT 1000
"""
_VERSIONS = f"""
SELECT model, version, parent_version, track, updates, trajectories, {ms("occurred_at")} AS at,
    substring(weights_sha256, 1, 12) AS sha256, size_bytes
FROM checkpoints FINAL WHERE {between("occurred_at")} ORDER BY occurred_at DESC LIMIT 50
"""
_ROLLOUTS = f"""
SELECT {ms("occurred_at")} AS at, model, action, stable_version, canary_version, canary_share, author, reason
FROM rollouts FINAL WHERE {between("occurred_at")} ORDER BY at DESC LIMIT 50
"""
# Shares of the seconds that updates in the range took.
_LEARNERS = f"""
SELECT model, count() AS updates, {ms("max(u.occurred_at)")} AS at, sum(arraySum(mapValues(seconds))) AS total_s,
    sum(seconds['train']) / total_s AS train, sum(seconds['wait']) / total_s AS wait,
    sum(seconds['read']) / total_s AS read, sum(seconds['fold']) / total_s AS fold,
    sum(seconds['publish']) / total_s AS publish
FROM (SELECT * FROM learner_updates FINAL WHERE {between("occurred_at")} ORDER BY occurred_at DESC LIMIT 10000) AS u
GROUP BY model ORDER BY at DESC LIMIT 50
"""


@reads("/api/fleet", installation=True)
def fleet(call: Call) -> Answer:
    """Return the workers that reported in the range, the decisions and versions, and the learners' time."""
    since, until = call.time_range("1h")
    queries = {"workers": _WORKERS, "versions": _VERSIONS, "rollouts": _ROLLOUTS, "learners": _LEARNERS}
    return {name: call.query_installation(sql, since=since, until=until) for name, sql in queries.items()}


ENDPOINTS = (fleet,)
