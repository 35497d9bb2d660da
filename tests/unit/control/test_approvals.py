"""Approvals: which answers count, and the state of a decision, in any order of delivery."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.control.approvals import (
    answer_fault,
    approval_state,
    approvers,
    expiry_reason,
    newest_decision_id,
    uncounted,
)
from stepstream.topics.events import Approval, Decision, DecisionAct, new_approval, new_decision, new_decision_act

NOW, UNTIL = 1_000, 2_000


def decision(id: str = "d1", **fields: Any) -> Decision:
    values = {
        "model": "m",
        "approvals": 2,
        "roles": ["operator"],
        "watched_until_us": UNTIL,
        "action": "canary",
        "lever": "weights",
    }
    return new_decision(event_id=id, occurred_at_us=0, agent="shop", **{**values, **fields})


def answer(author: str = "ada", verdict: str = "approved", id: str = "", **fields: Any) -> Approval:
    values = {"occurred_at_us": NOW, "decision_id": "d1", "role": "operator"}
    event_id = id or f"{author}-{verdict}"
    return new_approval(event_id=event_id, verdict=verdict, author=author, **{**values, **fields})


def act(state: str, id: str = "a1", **fields: Any) -> DecisionAct:
    values = {"occurred_at_us": NOW, "agent": "shop", "model": "m", "decision_id": "d1", **fields}
    return new_decision_act(event_id=id, state=state, **values)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, ""),
        ({"role": "admin"}, ""),
        ({"decision_id": "d2"}, "there is no such decision"),
        ({"tenant": "acme"}, "there is no such decision"),
        ({"verdict": "maybe"}, "the verdict is approved or rejected, not maybe"),
        ({"role": "viewer"}, "it needs one of the roles operator; yours is viewer"),
        ({"role": ""}, "yours is unknown"),
        ({"role": "boss"}, "yours is boss"),
        ({"occurred_at_us": UNTIL + 1}, "it could be answered until 1970-01-01 00:00:00 UTC"),
    ],
)
def test_an_answer_counts_or_is_refused_with_the_reason(given: dict[str, Any], fault: str) -> None:
    found = answer_fault(decision(), [], [], answer(**given), NOW, "d1")
    assert (fault in found) if fault else not found


def test_an_answer_to_a_decision_that_is_no_longer_current_is_refused() -> None:
    def fault(*, about: Decision | None = None, now: int = NOW, newest: str = "d1", acts: Any = ()) -> str:
        return answer_fault(about or decision(), [], acts, answer(), now, newest)

    assert not fault()
    assert "until" in fault(now=UNTIL + 1)
    assert fault(newest="d2") == "it is no longer current: decision d2 replaced it"
    assert fault(acts=[act("done")]) == "it is done already"
    assert not fault(acts=[act("done", decision_id="d0")])
    assert fault(about=decision(approvals=0)) == "it needs no approval"
    assert answer_fault(None, [], [], answer(), NOW, "") == "there is no such decision"


def test_two_people_must_approve_and_one_may_reject() -> None:
    first, again = answer(), answer(id="again")
    assert "another person must approve" in answer_fault(decision(), [first], [], again, NOW, "d1")
    assert approval_state(decision(), [first, again], [], NOW, "d1") == "awaiting"
    assert not answer_fault(decision(), [first], [], answer(verdict="rejected"), NOW, "d1")  # a change of mind
    both = [first, answer("bob")]
    assert approval_state(decision(), both, [], NOW, "d1") == "approved"
    assert approvers(decision(), both) == ["ada", "bob"]
    assert answer_fault(decision(), both, [], answer("cy"), NOW, "d1") == "ada, bob approved it already"
    rejected = [first, answer("bob", "rejected")]
    assert approval_state(decision(), rejected, [], NOW, "d1") == "rejected"
    assert answer_fault(decision(), rejected, [], answer("cy"), NOW, "d1") == "bob rejected it already"


def test_what_is_not_done_in_time_expires() -> None:
    both = [answer(), answer("bob")]
    assert approval_state(decision(), both, [], UNTIL + 1, "d1") == "expired"
    assert approval_state(decision(), both, [act("done")], UNTIL + 1, "d2") == "approved"
    assert approval_state(decision(), [], [], NOW, "d2") == "expired"
    assert approval_state(decision(approvals=0), [], [], UNTIL + 1, "d1") == "approved"
    assert approval_state(decision(), both, [act("expired")], NOW, "d1") == "expired"


def test_an_expired_decision_names_those_who_approved_it_and_what_replaced_it() -> None:
    both = [answer(), answer("bob")]
    assert expiry_reason(decision(), [], "d1") == "nobody answered in time"
    assert expiry_reason(decision(), [answer(occurred_at_us=UNTIL + 1)], "d1") == "nobody answered in time"
    assert expiry_reason(decision(), both[:1], "d1") == "1 of 2 people approved it in time"
    done_too_late = "ada, bob approved it in time, but no controller did it until 1970-01-01 00:00:00 UTC"
    assert expiry_reason(decision(), both, "d1") == done_too_late
    assert expiry_reason(decision(), both, "d2") == "it is no longer current: decision d2 replaced it"


def test_a_hold_replaces_no_decision() -> None:
    own, hold, other = decision(), decision("d2", action="hold"), decision("d3", model="n")
    assert newest_decision_id([own, hold, other], own) == "d1"
    assert newest_decision_id([own, hold, decision("d4")], own) == "d4"
    assert newest_decision_id([own, decision("d4"), own], own) == "d4"
    assert newest_decision_id([], own) == "d1"


_answers = st.lists(
    st.builds(
        answer,
        author=st.sampled_from(["ada", "bob", "cy"]),
        verdict=st.sampled_from(["approved", "approved", "approved", "rejected", "maybe"]),
        id=st.uuids().map(str),
        role=st.sampled_from(["viewer", "operator", "admin", ""]),
        occurred_at_us=st.integers(0, UNTIL + 500),
        refused=st.sampled_from(["", "", "", "late"]),
        decision_id=st.sampled_from(["d1", "d1", "d1", "d2"]),
    ),
    max_size=8,
)
_acts = st.lists(
    st.builds(act, state=st.sampled_from(["done", "rejected", "expired", "failed"]), id=st.uuids().map(str)), max_size=2
)


@given(_answers, _acts, st.randoms(use_true_random=False), st.integers(0, UNTIL + 500))
def test_neither_order_nor_redelivery_of_answers_matters(
    answers: list[Approval], acts: list[DecisionAct], random: Any, now: int
) -> None:
    state = approval_state(decision(), answers, acts, now, "d1")
    delivered = [*answers, *random.choices(answers, k=3)] if answers else []
    random.shuffle(delivered)
    repeated = [*acts, *acts]
    random.shuffle(repeated)
    assert approval_state(decision(), delivered, repeated, now, "d1") == state
    late = answer("dee", id="late")
    assert answer_fault(decision(), delivered, repeated, late, now, "d1") == answer_fault(
        decision(), answers, acts, late, now, "d1"
    )


@given(_answers)
def test_nothing_is_approved_but_by_enough_people_of_the_role_in_time(answers: list[Approval]) -> None:
    if approval_state(decision(), answers, [], NOW, "d1") != "approved":
        return
    people = approvers(decision(), answers)
    assert len(set(people)) == 2
    for person in people:
        assert any(
            one["author"] == person
            and (one["verdict"], one["refused"], one["decision_id"]) == ("approved", "", "d1")
            and one["role"] in {"operator", "admin"}
            and one["occurred_at_us"] <= UNTIL
            for one in answers
        )


@given(_answers)
def test_an_answer_that_does_not_count_changes_nothing(answers: list[Approval]) -> None:
    taken: list[Approval] = []
    for one in answers:
        fault = answer_fault(decision(), taken, [], one, NOW, "d1")
        before = approval_state(decision(), taken, [], NOW, "d1")
        taken.append({**one, "refused": fault or one["refused"]})
        if taken[-1]["refused"]:
            assert approval_state(decision(), taken, [], NOW, "d1") == before
        elif before != "awaiting":
            raise AssertionError("an answer counts after the end")


def test_answers_that_came_while_the_decision_was_done_are_refused_later() -> None:
    given = [
        answer(occurred_at_us=1),
        answer("vito", role="viewer", occurred_at_us=2),
        answer("bert", occurred_at_us=3),
        answer("carl", occurred_at_us=4),
        answer("dora", "rejected", occurred_at_us=2),
        answer("emil", occurred_at_us=5, refused="said already"),
    ]
    found = {one["author"]: fault for one, fault in uncounted(decision(), given, [act("done", occurred_at_us=3)])}
    assert set(found) == {"vito", "dora", "carl"}
    assert found["dora"] == "it is done already"
    assert found["carl"] == "ada, bert approved it already"
    # Once they are written with the reason, nothing is left to refuse.
    told = [{**one, "refused": found.get(one["author"], one["refused"])} for one in given]
    assert list(uncounted(decision(), told, [act("done", occurred_at_us=3)])) == []  # type: ignore[arg-type]


def test_an_answer_after_the_end_of_the_wait_is_refused_later() -> None:
    given = [answer(occurred_at_us=1), answer("bert", occurred_at_us=3)]
    [(late, fault)] = uncounted(decision(), given, [act("expired", occurred_at_us=2)])
    assert (late["author"], fault) == ("bert", "it is expired already")
    rejected = [answer("bert", "rejected", occurred_at_us=1)]
    assert list(uncounted(decision(), rejected, [act("rejected", occurred_at_us=2)])) == []
