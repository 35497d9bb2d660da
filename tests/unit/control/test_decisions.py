"""The fold of decisions, answers and acts, as the CLI and the console show it."""

from typing import Any

import pytest

from stepstream.services.control.approvals import approval_state, newest_decision_id
from stepstream.services.control.decisions import UnknownDecision, fold
from stepstream.services.control.history import DecisionLog
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS
from stepstream.topics.events import Decision, new_approval, new_decision, new_decision_act

NOW = 1_000


def decision(id: str, action: str = "canary", tenant: str = "default", agent: str = "shop") -> Decision:
    return new_decision(
        event_id=id,
        occurred_at_us=0,
        tenant=tenant,
        agent=agent,
        model="m",
        action=action,
        lever="weights",
        approvals=0 if action == "hold" else 1,
        roles=["operator"],
        watched_until_us=2 * NOW,
    )


def approval(id: str, decision_id: str, verdict: str = "approved") -> dict[str, object]:
    return {"event_id": id, "occurred_at_us": NOW, "decision_id": decision_id, "verdict": verdict} | {
        "author": "ada",
        "role": "operator",
    }


def test_the_newest_decisions_come_first_with_their_states() -> None:
    done = new_decision_act(
        event_id="a", occurred_at_us=NOW, agent="shop", model="m", decision_id="d1", state="done", description="put out"
    )
    log = fold([decision("d1"), decision("h", "hold"), decision("d2"), decision("d1")], [], [done, done])
    assert [(row["id"], row["state"]) for row in log.listed(NOW)] == [("d2", "awaiting"), ("d1", "done")]
    assert [row["id"] for row in log.listed(NOW, holds=True)] == ["d2", "h", "d1"]
    assert [row["id"] for row in log.listed(NOW, state="done")] == ["d1"]
    assert log.listed(NOW, tenant="acme") == log.listed(NOW, agent="desk") == log.listed(NOW, model="n") == []
    assert [one["description"] for one in log.details(log.found("d1"), NOW)["acts"]] == ["put out"]
    assert [row["state"] for row in log.listed(3 * NOW)] == ["expired", "done"]


@pytest.mark.parametrize(("earlier", "later"), [("started", "done"), ("started", "failed"), ("done", "undone")])
def test_a_clock_that_goes_back_hides_no_later_state(earlier: str, later: str) -> None:
    """A person undoes on another machine, whose clock is behind; or a restarted controller's clock is."""
    acts = [
        new_decision_act(event_id=state, occurred_at_us=at_us, agent="shop", model="m", decision_id="d1", state=state)
        for state, at_us in ((earlier, NOW), (later, NOW - 500))
    ]
    assert fold([decision("d1")], [], acts).state(decision("d1"), NOW) == later
    log = DecisionLog()
    for act in acts:
        log.add(DECISION_ACTS, act)
    assert log.state_of(decision("d1")) == later
    assert approval_state(decision("d1"), [], acts, NOW, "d1") == "approved"


def test_people_and_the_controller_agree_on_the_current_decision_after_a_clock_went_back() -> None:
    first, second = decision("d1") | {"occurred_at_us": 50}, decision("d2") | {"occurred_at_us": 40}
    records: list[Any] = [first, second]
    log = DecisionLog()
    for record in records:
        log.add(DECISIONS, record)
    current = newest_decision_id(log.in_order(), records[1])
    assert fold(records, [], []).newest_like(records[1]) == current


def test_an_answer_has_the_reason_why_it_does_not_count() -> None:
    given = new_approval(**approval("1", "d1"))  # type: ignore[arg-type]
    person = {"tenant": "", "author": "bob", "role": "operator", "comment": "", "event_id": "2", "now_us": NOW}
    log = fold([decision("d1")], [], [])
    assert log.answered("d1", "approved", **person)["refused"] == ""  # type: ignore[arg-type]
    log = fold([decision("d1")], [given, given], [])
    assert log.listed(NOW)[0]["approved_by"] == ["ada"]
    assert log.answered("d1", "approved", **person)["refused"] == "ada approved it already"  # type: ignore[arg-type]
    log = fold([decision("d1"), decision("d2")], [], [])
    assert "replaced it" in log.answered("d1", "approved", **person)["refused"]  # type: ignore[arg-type]


def test_a_person_of_one_tenant_finds_no_decision_of_another() -> None:
    log = fold([decision("d1", tenant="acme")], [], [])
    assert log.found("d1")["tenant"] == log.found("d1", "acme")["tenant"] == "acme"
    for id, tenant in (("d1", "other"), ("d9", "")):
        with pytest.raises(UnknownDecision, match="stepstream decisions list"):
            log.found(id, tenant)
