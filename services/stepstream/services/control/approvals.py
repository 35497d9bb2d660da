"""Decide which answers of people to a decision count, and whether it may be done. Pure.

The CLI, the console and the controller use these functions. An answer that does not count is written to the topic
`approvals` with the reason. The result depends neither on the order of the answers nor on repeated ones: they are
sorted by time and id.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Literal

from stepstream.services.control.decide.policy import ROLES
from stepstream.topics.events import Approval, Decision, DecisionAct

ApprovalState = Literal["awaiting", "approved", "rejected", "expired"]

APPROVED, REJECTED = "approved", "rejected"
"""Verdicts."""
STARTED = "started"
"""State of a decision to propose while a search runs."""


def key_of(decision: Decision) -> tuple[str, str, str]:
    """Return tenant, agent and model."""
    return decision["tenant"], decision["agent"], decision["model"]


def newest_decision_id(decisions: Iterable[Decision], about: Decision) -> str:
    """Return the id of the newest decision of the agent and model that is no `hold`; `decisions`: in order of time.

    A `hold` replaces nothing: the control plane also holds because a decision waits for people.
    """
    key = key_of(about)
    ids = dict.fromkeys(one["event_id"] for one in decisions if one["action"] != "hold" and key_of(one) == key)
    return next(reversed(ids), about["event_id"])  # a repeated record keeps the place of its first


def answer_fault(
    decision: Decision | None,
    answers: Iterable[Approval],
    acts: Iterable[DecisionAct],
    answer: Approval,
    now_us: int,
    newest_decision_id: str,
) -> str:
    """Return why an answer does not count; empty: it counts.

    Args:
        decision: the decision that it names; None: there is none.
        answers: earlier answers; those to other decisions and the answer itself are ignored.
        acts: what the control plane has done; those of other decisions are ignored.
        answer: the answer.
        now_us: time at which it is judged, in microseconds since the Unix epoch.
        newest_decision_id: as `newest_decision_id` returns it.
    """
    if decision is None or decision["event_id"] != answer["decision_id"] or decision["tenant"] != answer["tenant"]:
        return "there is no such decision"
    if answer["verdict"] not in {APPROVED, REJECTED}:
        return f"the verdict is {APPROVED} or {REJECTED}, not {answer['verdict']}"
    if not decision["approvals"]:
        return "it needs no approval"
    if not may_answer(decision, answer["role"]):
        return f"it needs one of the roles {', '.join(decision['roles'])}; yours is {answer['role'] or 'unknown'}"
    if states := _states(decision, acts):
        return f"it is {states[-1]} already"
    if decision["event_id"] != newest_decision_id:
        return f"it is no longer current: decision {newest_decision_id} replaced it"
    if is_late(decision, max(now_us, answer["occurred_at_us"])):
        return f"it could be answered until {_time(decision['watched_until_us'])}"
    state, authors = _count(decision, (one for one in answers if one["event_id"] != answer["event_id"]))
    if state != "awaiting":
        return f"{', '.join(authors)} {state} it already"
    if answer["verdict"] == APPROVED and answer["author"] in authors:
        return f"{answer['author']} approved it already: another person must approve"
    return ""


def approval_state(
    decision: Decision,
    answers: Iterable[Approval],
    acts: Iterable[DecisionAct],
    now_us: int,
    newest_decision_id: str,
) -> ApprovalState:
    """Return whether the decision waits for people, may be done or was done, was rejected, or is no longer current.

    Approved in time but not done until `watched_until_us` is `expired`: its evidence is too old.
    """
    if states := _states(decision, acts):
        match states[-1]:
            case "rejected":
                return "rejected"
            case "expired":
                return "expired"
        return "approved"
    if not decision["approvals"]:
        return "approved"
    state, _ = _count(decision, answers)
    if state == "rejected":
        return "rejected"
    if decision["event_id"] != newest_decision_id or is_late(decision, now_us):
        return "expired"
    return state


def expiry_reason(decision: Decision, answers: Iterable[Approval], newest_decision_id: str) -> str:
    """Return why a decision that waited for people has expired, as `approval_state` says."""
    if decision["event_id"] != newest_decision_id:
        return f"it is no longer current: decision {newest_decision_id} replaced it"
    state, authors = _count(decision, answers)
    if state == "approved":
        until = _time(decision["watched_until_us"])
        return f"{', '.join(authors)} approved it in time, but no controller did it until {until}"
    return (
        f"{len(authors)} of {decision['approvals']} people approved it in time"
        if authors
        else "nobody answered in time"
    )


def uncounted(
    decision: Decision, answers: Iterable[Approval], acts: Iterable[DecisionAct]
) -> Iterator[tuple[Approval, str]]:
    """Yield answers that were accepted when they were written but did not count, with the reason, in order of time.

    They came while the decision was being done, or from a client that does not check them.
    """
    ends = _in_time(acts, decision)
    counted: list[Approval] = []
    for one in sorted((one for one in answers if not one["refused"]), key=_order):
        fault = answer_fault(decision, counted, (), one, one["occurred_at_us"], decision["event_id"])
        if not fault and ends:
            state, at_us = ends[0]["state"], ends[0]["occurred_at_us"]
            is_after = state == "expired" and one["occurred_at_us"] > at_us
            if is_after or (one["verdict"] == REJECTED and state != "rejected"):
                fault = f"it is {state} already"
        if fault:
            yield one, fault
        else:
            counted.append(one)


def act_order(act: DecisionAct) -> tuple[int, int, str]:
    """Return the order of an act: the begin of a search first, an undo last, the others between them; then by time.

    Clocks differ: an undo may come from another machine, a search may end under another controller.
    """
    place = {STARTED: 0, "undone": 2}.get(act["state"], 1)
    return place, act["occurred_at_us"], act["event_id"]


def approvers(decision: Decision, answers: Iterable[Approval]) -> list[str]:
    """Return the people whose approval counts, the first one first; for a rejected decision who rejected it."""
    return _count(decision, answers)[1]


def may_answer(decision: Decision, role: str) -> bool:
    """Return True if a person of this role may approve and reject; a role includes those below it."""
    if role not in ROLES:
        return False
    return any(ROLES.index(role) >= ROLES.index(one) for one in decision["roles"] if one in ROLES)


def is_late(decision: Decision, at_us: int) -> bool:
    """Return True if the decision can no longer be answered or done; one without `watched_until_us` always can."""
    return 0 < decision["watched_until_us"] < at_us


def _count(decision: Decision, answers: Iterable[Approval]) -> tuple[ApprovalState, list[str]]:
    """Return the state by the answers alone, and who approved; or who rejected."""
    found = {one["event_id"]: one for one in answers if _is_valid(decision, one)}
    authors: list[str] = []
    for one in sorted(found.values(), key=_order):
        if one["verdict"] == REJECTED:
            return "rejected", [one["author"]]
        if one["author"] not in authors:
            authors.append(one["author"])
        if len(authors) >= decision["approvals"]:
            return "approved", authors
    return "awaiting", authors


def _is_valid(decision: Decision, answer: Approval) -> bool:
    """Return True if an answer was accepted when it was given, and is about the decision, in time and by its roles."""
    return (
        not answer["refused"]
        and (answer["decision_id"], answer["tenant"]) == (decision["event_id"], decision["tenant"])
        and answer["verdict"] in {APPROVED, REJECTED}
        and may_answer(decision, answer["role"])
        and not is_late(decision, answer["occurred_at_us"])
    )


def _states(decision: Decision, acts: Iterable[DecisionAct]) -> list[str]:
    """Return the states of the decision's acts in order of time."""
    return [one["state"] for one in _in_time(acts, decision)]


def _in_time(acts: Iterable[DecisionAct], decision: Decision) -> list[DecisionAct]:
    """Return the decision's acts in order of time."""
    own = (one for one in acts if one["decision_id"] == decision["event_id"] and one["tenant"] == decision["tenant"])
    return sorted(own, key=act_order)


def _order(record: Approval) -> tuple[int, str]:
    return record["occurred_at_us"], record["event_id"]


def _time(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
