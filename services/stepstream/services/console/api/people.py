"""Answer the page People: consent, erasures with their proofs, and quarantine with its release."""

from collections.abc import Mapping
from typing import Any

from stepstream.services.console.api.sql import ms
from stepstream.services.console.endpoints import TENANT, Answer, BadRequest, Call, Done, acts, reads
from stepstream.topics.catalogue import CURATION
from stepstream.topics.events import new_curation
from stepstream.topics.ids import DEFAULT_TENANT, new_event_id, now_us

MOST_RELEASED = 100
MOST_ERASURES = 200
"""Requests, and proofs, that the page lists: the newest."""
_CONSENTS = f"""
SELECT tenant, user, agent, consent, {ms("occurred_at")} AS at FROM consents FINAL
WHERE {TENANT} ORDER BY occurred_at DESC LIMIT 500
"""
_CONSENT_COUNTS = f"""
SELECT consent, count() AS consents FROM consents FINAL WHERE {TENANT} GROUP BY consent ORDER BY consent
"""
_REQUESTS = f"""
SELECT subject, tenant, requested_by, {ms("occurred_at")} AS requested_at FROM erasures FINAL
WHERE {TENANT} ORDER BY occurred_at DESC LIMIT {MOST_ERASURES}
"""
_PROOFS = f"""
SELECT request_id, subject, tenant, requested_by, version, keys_destroyed, rows_deleted, consents_deleted, trajectories,
    records_unreadable, records_deleted, remaining, {ms("requested_at")} AS requested_at,
    {ms("erased_until")} AS erased_until, {ms("occurred_at")} AS finished_at
FROM erasure_proofs FINAL WHERE {TENANT} ORDER BY occurred_at DESC LIMIT {MOST_ERASURES}
"""
# Of all proofs: one of the requests on the page may not be among the newest, as after a pass over many persons.
_FINISHED = f"""
SELECT tenant, subject, {ms("max(p.occurred_at)")} AS finished_at FROM erasure_proofs AS p FINAL
WHERE {TENANT} AND subject IN {{subjects:Array(String)}} GROUP BY tenant, subject
"""
_QUARANTINE = f"""
SELECT tenant, trajectory_id, agent, group_id, success, end, pending, steps, reasons, by, {ms("ended_at")} AS ended_at,
    if(decided_at IS NULL, NULL, {ms("assumeNotNull(decided_at)")}) AS decided_at
FROM quarantine
WHERE {TENANT} AND arrayExists(reason -> startsWith(reason, {{reason:String}}), reasons)
ORDER BY ended_at DESC, trajectory_id LIMIT 200
"""
_HELD = f"""
SELECT uniqExact(trajectory_id) AS held FROM quarantine
WHERE {TENANT} AND tenant = {{of:String}} AND trajectory_id IN {{ids:Array(String)}}
"""


@reads("/api/people")
def people(call: Call) -> Answer:
    """Return consents, erasures (those without a proof are in progress) and held trajectories."""
    requests = call.query(_REQUESTS, fresh_s=2.0)
    finished = call.query(_FINISHED, fresh_s=2.0, subjects=[request["subject"] for request in requests])
    return {
        "consents": call.query(_CONSENTS, fresh_s=2.0),
        "consent_counts": call.query(_CONSENT_COUNTS, fresh_s=2.0),
        "erasures": [*unfinished(requests, finished), *call.query(_PROOFS, fresh_s=2.0)],
        "quarantine": call.query(_QUARANTINE, reason=call.text("reason")),
    }


def unfinished(requests: list[Any], proofs: list[Any]) -> list[Any]:
    """Return the requests whose person has no later proof, of the newest proof of each; `finished_at` is None."""
    finished = {(proof["tenant"], proof["subject"]): proof["finished_at"] for proof in proofs}
    return [
        {**request, "finished_at": None}
        for request in requests
        if finished.get((request["tenant"], request["subject"]), 0) < request["requested_at"]
    ]


@acts("/api/quarantine/release", names=("tenant", "trajectory_ids"))
def release(call: Call) -> Done:
    """Release held trajectories for training: as `stepstream quarantine release`."""
    tenant = call.user.tenant or str(call.body.get("tenant") or DEFAULT_TENANT)
    ids = _ids(call.body)
    [known] = call.query(_HELD, fresh_s=0.0, of=tenant, ids=ids)
    if known["held"] != len(ids):
        raise BadRequest(
            f"tenant {tenant} holds only {known['held']} of these {len(ids)} trajectories: load the page again"
        )
    for trajectory_id in ids:
        decision = new_curation(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            trajectory_id=trajectory_id,
            action="release",
            reason="by_hand",
            by=call.user.name,
            tenant=tenant,
        )
        call.services.log.publish(CURATION, trajectory_id, decision)
    return Done(f"{tenant}: {', '.join(ids)}", {"released": len(ids)})


def _ids(body: Mapping[str, Any]) -> list[str]:
    ids = body.get("trajectory_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) and one for one in ids):
        raise BadRequest("trajectory_ids must be a list of ids")
    if len(ids) > MOST_RELEASED:
        raise BadRequest(f"release at most {MOST_RELEASED} trajectories at once")
    return list(dict.fromkeys(ids))


ENDPOINTS = (people, release)
