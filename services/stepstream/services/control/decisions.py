"""Fold decisions, answers of people and acts into what the CLI and the console show. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stepstream.services.control.approvals import act_order, answer_fault, approval_state, approvers, key_of
from stepstream.services.control.signatures import TrustedKeys, signed
from stepstream.services.control.undo import undo_kind
from stepstream.topics.events import Approval, Decision, DecisionAct, new_approval

STATES = ("held", "awaiting", "approved", "started", "rejected", "expired", "done", "failed", "undone")
"""States of a decision: by its action, by the answers to it, or by the newest act."""

_ROW = (
    "tenant",
    "agent",
    "model",
    "action",
    "lever",
    "target",
    "rule",
    "reason",
    "share",
    "approvals",
    "roles",
    "watched_until_us",
    "undo",
)
_DETAILS = ("evidence", "lost", "view", "position", "policy_hash", "cost", "blast_radius", "detectable_effect")


class UnknownDecision(LookupError):
    """There is no decision of this id, or it is another tenant's."""


@dataclass
class Decisions:
    """Records of the three topics, in order of the log. A repeated record counts once."""

    by_id: dict[str, Decision] = field(default_factory=dict)
    newest: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """Id of the newest decision that is no `hold`, by tenant, agent and model."""
    answers: dict[str, list[Approval]] = field(default_factory=dict)
    """Answers by decision."""
    acts: dict[str, list[DecisionAct]] = field(default_factory=dict)
    """Acts by decision."""
    keys: TrustedKeys = field(default_factory=TrustedKeys)
    """Keys whose signatures make an answer count."""

    def found(self, decision_id: str, tenant: str = "") -> Decision:
        """Return a decision; an empty tenant: of any.

        Raises:
            UnknownDecision: there is none.
        """
        decision = self.by_id.get(decision_id)
        if decision is None or tenant not in {"", decision["tenant"]}:
            raise UnknownDecision(f"there is no decision {decision_id}: see `stepstream decisions list`")
        return decision

    def answers_to(self, decision: Decision) -> list[Approval]:
        """Return the answers to a decision, the oldest first; before its first act, forged ones are `refused`."""
        answers = sorted(self.answers.get(decision["event_id"], ()), key=_order)
        return answers if self.acts.get(decision["event_id"]) else self.keys.checked(answers)

    def acts_of(self, decision: Decision) -> list[DecisionAct]:
        """Return what was done about a decision, the oldest first."""
        return sorted(self.acts.get(decision["event_id"], ()), key=act_order)

    def newest_like(self, decision: Decision) -> str:
        """Return the id that `approvals.newest_decision_id` returns."""
        return self.newest.get(key_of(decision), decision["event_id"])

    def state(self, decision: Decision, now_us: int) -> str:
        """Return `held`, the state of the newest act, or else `awaiting`, `approved`, `rejected` or `expired`."""
        if decision["action"] == "hold":
            return "held"
        if acts := self.acts_of(decision):
            return acts[-1]["state"]
        return approval_state(decision, self.answers_to(decision), [], now_us, self.newest_like(decision))

    def answered(
        self,
        decision_id: str,
        verdict: str,
        *,
        tenant: str,
        author: str,
        role: str,
        comment: str,
        event_id: str,
        now_us: int,
        key: Ed25519PrivateKey | None = None,
    ) -> Approval:
        """Return a person's answer, signed, with `refused` if it does not count.

        Args:
            decision_id: id of the decision.
            verdict: `approved` or `rejected`.
            tenant: the one tenant whose decisions the person may answer; empty: all.
            author: name of the person.
            role: role of the person; empty: unknown.
            comment: comment of the person.
            event_id: id of the answer.
            now_us: time of the answer, in microseconds since the Unix epoch.
            key: key that signs it; None: it is not signed.

        Raises:
            UnknownDecision: there is no such decision of the tenant.
        """
        decision = self.found(decision_id, tenant)
        unsigned = new_approval(
            event_id=event_id,
            occurred_at_us=now_us,
            tenant=decision["tenant"],
            decision_id=decision_id,
            verdict=verdict,
            author=author,
            role=role,
            comment=comment,
        )
        answer = signed(unsigned, key)
        earlier, acts = self.answers_to(decision), self.acts_of(decision)
        fault = answer_fault(decision, earlier, acts, answer, now_us, self.newest_like(decision))
        return {**answer, "refused": fault or self.keys.fault(answer)}

    def listed(
        self, now_us: int, *, tenant: str = "", agent: str = "", model: str = "", state: str = "", holds: bool = False
    ) -> list[dict[str, Any]]:
        """Return rows of the decisions that match, the newest first; an empty filter matches all."""
        rows = (
            self.row(one, now_us)
            for one in reversed(self.by_id.values())
            if (holds or one["action"] != "hold")
            and tenant in {"", one["tenant"]}
            and agent in {"", one["agent"]}
            and model in {"", one["model"]}
        )
        return [row for row in rows if state in {"", row["state"]}]

    def row(self, decision: Decision, now_us: int) -> dict[str, Any]:
        """Return the fields that a list shows of a decision."""
        return {
            "id": decision["event_id"],
            "at_us": decision["occurred_at_us"],
            **_fields(decision, _ROW),
            "state": self.state(decision, now_us),
            "approved_by": approvers(decision, self.answers_to(decision)) if decision["approvals"] else [],
            "can_undo": bool(undo_kind(decision)),
        }

    def details(self, decision: Decision, now_us: int) -> dict[str, Any]:
        """Return everything about a decision: evidence, alternatives, answers and acts."""
        return {
            **self.row(decision, now_us),
            **_fields(decision, _DETAILS),
            "answers": self.answers_to(decision),
            "acts": self.acts_of(decision),
        }


def fold(
    decisions: Iterable[Decision],
    answers: Iterable[Approval],
    acts: Iterable[DecisionAct],
    keys: TrustedKeys | None = None,
) -> Decisions:
    """Return the fold of records in order of the log. `keys`: those whose signatures make an answer count."""
    folded = Decisions(keys=keys or TrustedKeys())
    for decision in decisions:
        if folded.by_id.setdefault(decision["event_id"], decision) is not decision or decision["action"] == "hold":
            continue
        before = folded.by_id.get(folded.newest.get(key_of(decision), ""))
        if before is None or _order(before) < _order(decision):  # by time, as the controller
            folded.newest[key_of(decision)] = decision["event_id"]
    newest: dict[str, Approval] = {}
    for answer in answers:
        newest[answer["event_id"]] = folded.keys.chosen(newest.get(answer["event_id"]), answer)
    for answer in newest.values():
        folded.answers.setdefault(answer["decision_id"], []).append(answer)
    for act in {one["event_id"]: one for one in acts}.values():
        folded.acts.setdefault(act["decision_id"], []).append(act)
    return folded


def _order(record: Approval | Decision) -> tuple[int, str]:
    return record["occurred_at_us"], record["event_id"]


def _fields(decision: Decision, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: decision[name] for name in names}  # type: ignore[literal-required]
