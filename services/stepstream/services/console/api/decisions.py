"""Answer the page Decisions: decisions with evidence and effect, the policies in force; approve, reject, undo, freeze.

The functions are those of `stepstream decisions`, so both refuse alike.
"""

from collections.abc import Iterable
from functools import lru_cache, partial

from stepstream.analytics.success import share
from stepstream.jobs.clickhouse.outcome import OUTCOME
from stepstream.services.console.api.sql import between
from stepstream.services.console.decision_cache import reading_log
from stepstream.services.console.endpoints import TENANT, Answer, BadRequest, Call, Done, acts, reads
from stepstream.services.control.approvals import may_answer
from stepstream.services.control.decide.policy import ControlPolicy as Policy
from stepstream.services.control.decide.policy import PolicyError
from stepstream.services.control.decide.words import describe
from stepstream.services.control.decisions import STATES, Decisions, UnknownDecision
from stepstream.services.control.policy_versions import PolicyRefused, frozen, record_key
from stepstream.services.control.undo_records import REFUSALS, Record, undo_records
from stepstream.topics.catalogue import APPROVALS, CONTROL_POLICIES
from stepstream.topics.events import ControlPolicy, Decision
from stepstream.topics.ids import DEFAULT_TENANT, new_event_id, now_us

MOST_ROWS = 200
_WINDOW_US = 86_400_000_000
"""Length of the windows before and after a decision whose success the page compares."""
_SUCCESS = f"""
SELECT countIf({OUTCOME} IS NOT NULL) AS outcomes, countIf(success) AS successes, count() AS trajectories
FROM trajectories FINAL
WHERE {TENANT} AND tenant = {{of:String}} AND agent = {{agent:String}} AND model = {{model:String}}
    AND {between("opened_at")}
"""


@reads("/api/decisions")
def decisions(call: Call) -> Answer:
    """Return the newest decisions, one with its details and effect if `id` names it, and the policies in force."""
    tenant, now = call.tenant, now_us()
    log, policies = call.services.decisions.get()
    state = call.text("state")
    if state not in {"", *STATES}:
        raise BadRequest(f"state must be one of {', '.join(STATES)}")
    filters = {name: call.text(name, longest=256) for name in ("agent", "model")}
    rows = log.listed(now, tenant=tenant, state=state, holds=state == "held", **filters)[:MOST_ROWS]
    answer: Answer = {"decisions": rows, "policies": _policies(tenant, policies), "decision": None}
    if decision_id := call.text("id"):
        decision = _found(log, decision_id, tenant)
        answer["decision"] = log.details(decision, now) | {
            "may_answer": may_answer(decision, call.user.role),
            "effect": _effect(call, decision, now),
        }
    return answer


@acts("/api/decisions/answer", names=("verdict", "id"), role="viewer")
def answer_decision(call: Call) -> Done:
    """Write the person's answer, also one that does not count; that one gives status 400 with the reason.

    The decision names the roles that may answer. One by another role is on the log too, so any user may call it.
    """
    decision_id, verdict = str(call.body.get("id")), str(call.body.get("verdict"))
    log, _ = call.services.decisions.get(fresh=True)
    try:
        answer = log.answered(
            decision_id,
            verdict,
            tenant=call.user.tenant,
            author=call.user.name,
            role=call.user.role,
            comment=str(call.body.get("comment") or "")[:1000],
            event_id=new_event_id(),
            now_us=now_us(),
            key=call.services.decisions.signing_key,
        )
    except UnknownDecision as error:
        raise BadRequest(str(error)) from None
    _publish(call, [(APPROVALS, decision_id, answer)])
    if answer["refused"]:
        raise BadRequest(f"The answer does not count: {answer['refused']}.")
    return Done(f"{verdict} {decision_id}")


@acts("/api/decisions/undo", names=("id",))
def undo(call: Call) -> Done:
    """Take back what a decision did, as `stepstream decisions undo`."""
    decision_id = str(call.body.get("id"))
    log, _ = call.services.decisions.get(fresh=True)
    decision = _found(log, decision_id, call.user.tenant)
    reason = str(call.body.get("reason") or "")[:1000]
    try:
        records = reading_log(partial(undo_records, call.services.settings, decision, call.user.name, reason))
    except REFUSALS as error:
        raise BadRequest(f"It cannot be undone: {error}.") from None
    _publish(call, records)
    return Done(decision_id, {"undone": records[-1][2]["description"]})


@acts("/api/decisions/freeze", names=("tenant", "policy"))
def freeze(call: Call) -> Done:
    """Freeze or unfreeze the policies of a tenant: the kill switch, as `stepstream decisions freeze`."""
    tenant = str(call.body.get("tenant") or call.user.tenant or DEFAULT_TENANT)
    if call.user.tenant not in {"", tenant}:
        raise BadRequest(f"you may not freeze policies of tenant {tenant}")
    name, is_frozen = str(call.body.get("policy") or ""), call.body.get("frozen")
    if not isinstance(is_frozen, bool):
        raise BadRequest("frozen must be true or false")
    _, policies = call.services.decisions.get(fresh=True)
    try:
        records = frozen(
            policies,
            tenant,
            name,
            is_frozen=is_frozen,
            author=call.user.name,
            now_us=now_us(),
            new_id=new_event_id,
        )
    except PolicyRefused as error:
        raise BadRequest(str(error)) from None
    _publish(call, [(CONTROL_POLICIES, record_key(tenant, one["name"]), one) for one in records])
    return Done(f"{tenant} {'frozen' if is_frozen else 'unfrozen'}", {"changed": [one["name"] for one in records]})


def _publish(call: Call, records: Iterable[Record]) -> None:
    """Write records, and show them at the next question."""
    for topic, key, record in records:
        call.publish(topic, key, record)
    call.services.decisions.expire()


def _effect(call: Call, decision: Decision, now: int) -> list[Answer]:
    """Return the success of the agent and model in the day before the decision, and since it, at most a day."""
    at = decision["occurred_at_us"]
    of = {"of": decision["tenant"], "agent": decision["agent"], "model": decision["model"]}
    windows = {"before": (at - _WINDOW_US, at), "since": (at, min(now, at + _WINDOW_US))}
    found = []
    for window, (since, until) in windows.items():
        [row] = call.query(_SUCCESS, fresh_s=5.0, since=since, until=until, **of)
        rate = share(row["successes"], row["outcomes"])
        figures = {"rate": rate.value, "low": rate.low, "high": rate.high, "outcomes": row["outcomes"]}
        found.append({"window": window, "since": since // 1000, "until": until // 1000, **figures})
    return found


def _policies(tenant: str, policies: list[ControlPolicy]) -> list[Answer]:
    """Return the policies in force, in words."""
    return [
        {
            **{name: one[name] for name in ("tenant", "name", "version", "author", "frozen")},
            "at": one["occurred_at_us"] // 1000,
            "sentences": _words(one["document"]),
        }
        for one in sorted(policies, key=lambda one: (one["tenant"], one["name"]))
        if tenant in {"", one["tenant"]}
    ]


@lru_cache(64)
def _words(document: str) -> tuple[str, ...]:
    try:
        return tuple(describe(Policy.parse(document)))
    except PolicyError as error:  # written by a later release
        return (f"This console cannot explain it: {error}",)


def _found(log: Decisions, decision_id: str, tenant: str) -> Decision:
    try:
        return log.found(decision_id, tenant)
    except UnknownDecision as error:
        raise BadRequest(str(error)) from None


ENDPOINTS = (decisions, answer_decision, undo, freeze)
