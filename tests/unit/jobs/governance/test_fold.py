"""The `govern` fold: contexts, persons, consent, policies, duplicates, erasures and dead letters."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from fold_harness import FoldRun, MemoryState
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_records import T0_US, make_ending, make_feedback, make_steps

from stepstream.config import ModelPriceSettings
from stepstream.core.prices import Prices
from stepstream.jobs.governance import JOB
from stepstream.jobs.governance.active_policy import ActivePolicies, CannotGovern
from stepstream.jobs.governance.fold import GovernFold
from stepstream.jobs.governance.state import TrajectoryPersons
from stepstream.jobs.runtime.record import Record
from stepstream.topics.events import Consent, new_consent_change, new_message, new_policy
from stepstream.topics.ids import derived_id

POLICIES = ActivePolicies(b"key", {}, {})
MAIL = "ada@example.org"


class GovernRun(FoldRun):
    """A run that collects audit entries apart from the other outputs."""

    def __init__(self, fold: GovernFold, state: MemoryState) -> None:
        super().__init__(JOB, fold, state)
        self.audit: list[Any] = []

    def feed(self, records: Sequence[Record]) -> list[tuple[str, str, Any]]:
        outputs = super().feed(records)
        self.audit += [event for topic, _, event in outputs if topic == "governance-audit"]
        return [output for output in outputs if output[0] != "governance-audit"]


def fold_run(state: MemoryState | None = None, policies: Any = None, **limits: Any) -> GovernRun:
    values: dict[str, Any] = {"dedup_days": 7, "max_future_s": 300.0, "now_us": lambda: T0_US + 600_000_000} | limits
    return GovernRun(GovernFold(policies or POLICIES, **values), state or MemoryState())


def policy(document: str, tenant: str = "default", version: int = 1) -> dict[str, Any]:
    """Return a table with one policy."""
    record = new_policy(
        event_id=f"{tenant}@{version}", occurred_at_us=T0_US, tenant=tenant, version=version, document=document
    )
    return {tenant: record}


def test_feedback_without_a_person_belongs_to_the_person_of_its_trajectory() -> None:
    day_ms, now_ms = 86_400_000, T0_US // 1000
    comment: dict[str, Any] = {"comment": "she churned"}
    run = fold_run(persons=TrajectoryPersons(7))
    [step] = make_steps("t", 1, user="ada")
    [other] = make_steps("u", 1)
    feedbacks = [
        make_feedback("t", number=1),
        make_feedback("t", number=2, **comment),
        make_feedback("t", number=3, user="bob", **comment),
        make_feedback("t", number=4, tenant="other", **comment),
        make_feedback("u", number=5, **comment),
    ]
    run.feed([run.record("steps", each, at_ms=now_ms) for each in (step, other)])
    outputs = run.feed([run.record("feedback", feedback, at_ms=now_ms + 7 * day_ms) for feedback in feedbacks])
    assert [event["user"] for _, _, event in outputs] == [None, "ada", "bob", None, None]
    run.tick(now_ms + 8 * day_ms)
    later = run.record("feedback", make_feedback("t", number=6, **comment), at_ms=now_ms + 7 * day_ms)
    assert [event["user"] for _, _, event in run.feed([later])] == [None]


def test_a_step_without_a_cost_gets_that_of_the_price_table() -> None:
    prices = Prices([ModelPriceSettings(model="*", prompt_usd=0, response_usd=1_000_000)])
    run = fold_run(prices=prices)
    steps = [*make_steps("t", 1), *make_steps("u", 1, cost_usd=0.25)]
    costs = [event["cost_usd"] for _, _, event in run.feed([run.record("steps", step) for step in steps])]
    assert costs == [len(steps[0]["response_token_ids"]), 0.25]


def test_the_same_event_id_from_two_tenants_is_two_events() -> None:
    run = fold_run()
    [step] = make_steps("t", 1)
    outputs = run.feed([run.record("steps", step | {"tenant": tenant}) for tenant in ("one", "other", "one")])
    assert [event["tenant"] for _, _, event in outputs] == ["one", "other"]
    assert [entry["action"] for entry in run.audit] == ["duplicate"]


def test_steps_after_a_redacted_prefix_lose_its_digest_and_their_tokens() -> None:
    run = fold_run()
    steps = make_steps("t", 4)
    steps[1]["messages"] = [new_message(role="user", content=MAIL)]
    outputs = [event for step in steps for _, _, event in run.feed([run.record("steps", step)])]
    assert [event["prompt_shared_digest"] is None for event in outputs] == [True, True, True, True]
    assert [bool(event["response_token_ids"]) for event in outputs] == [True, False, False, False]
    assert outputs[3]["governed"]["flags"] == ["redacted:prefix"]
    assert [event["governed"]["trainable"] for event in outputs] == [True, False, False, False]


def test_a_redacted_tool_definition_removes_the_tokens_of_all_steps() -> None:
    run = fold_run()
    steps = make_steps("t", 3)
    tool = {"type": "function", "function": {"name": "write", "description": f"Writes to {MAIL}."}}
    steps[0]["tool_definitions"] = json.dumps([tool])
    outputs = [event for step in steps for _, _, event in run.feed([run.record("steps", step)])]
    assert MAIL not in json.dumps(outputs)
    (tool_definition,) = json.loads(outputs[0]["tool_definitions"])
    assert tool_definition["function"]["description"].startswith("Writes to <EMAIL:")
    assert [event["governed"]["flags"] for event in outputs] == [["redacted:email"], *[["redacted:prefix"]] * 2]
    assert not any(event["prompt_token_ids"] or event["response_token_ids"] for event in outputs)


def test_a_step_that_shares_no_prefix_after_a_redaction_is_trainable() -> None:
    run = fold_run()
    dirty, fresh = make_steps("t", 2)
    dirty["messages"] = [new_message(role="user", content=MAIL)]
    fresh |= {"prompt_shared_tokens": 0, "prompt_shared_messages": 0, "prompt_shared_digest": None}
    outputs = run.feed([run.record("steps", dirty), run.record("steps", fresh)])
    assert outputs[1][2]["governed"]["trainable"]


def test_a_step_that_arrives_before_its_predecessor_is_not_trainable() -> None:
    run = fold_run()
    first, second = make_steps("t", 2)
    [(_, _, late)] = run.feed([run.record("steps", second)])
    assert late["prompt_shared_digest"] is None
    assert late["governed"]["flags"] == ["redacted:prefix"]
    [(_, _, early)] = run.feed([run.record("steps", first)])
    assert early["governed"]["trainable"]


def test_a_branch_inherits_only_from_the_step_that_it_continues() -> None:
    run = fold_run()
    steps = make_steps("t", 5)
    steps[1]["response"] = new_message(role="assistant", content=f"ask {MAIL}")
    steps[2] |= {"prompt_shared_step": 0}
    steps[3] |= {"prompt_shared_step": 1}
    steps[4] |= {"prompt_shared_step": 2}
    outputs = [event for topic, _, event in run.feed([run.record("steps", step) for step in steps])]
    assert [event["governed"]["trainable"] for event in outputs] == [True, False, True, False, True]
    assert outputs[3]["governed"]["flags"] == ["redacted:prefix"]


def test_a_trajectory_that_crosses_midnight_keeps_its_prefix() -> None:
    run = fold_run(now_us=lambda: T0_US + 2 * 86_400_000_000)
    before, after = make_steps("t", 2)
    after["occurred_at_us"] += 86_400_000_000
    outputs = run.feed([run.record("steps", before), run.record("steps", after)])
    assert outputs[1][2]["governed"]["trainable"]


@pytest.mark.parametrize(("days", "trainable"), [(6, True), (7, True), (8, False)])
def test_a_trajectory_may_pause_for_as_long_as_state_is_kept(days: int, trainable: bool) -> None:
    now = [T0_US]
    run = fold_run(now_us=lambda: now[0])
    before, after = make_steps("t", 2)
    run.feed([run.record("steps", before)])
    now[0] += days * 86_400_000_000
    run.tick(now[0] // 1000)
    after["occurred_at_us"] += days * 86_400_000_000
    [(_, _, governed)] = run.feed([run.record("steps", after)])
    assert governed["governed"]["trainable"] is trainable
    assert governed["governed"]["flags"] == ([] if trainable else ["redacted:prefix"])


def test_a_clean_step_of_another_tenant_does_not_make_a_prefix_clean() -> None:
    run = fold_run()
    first, second = make_steps("t", 2)
    first["messages"] = [new_message(role="user", content=MAIL)]
    [foreign] = make_steps("t", 1, seed=1, tenant="other")
    outputs = run.feed([run.record("steps", step) for step in (first, foreign, second)])
    assert [event["governed"]["trainable"] for _, _, event in outputs] == [False, True, False]


def test_consent_decides_which_steps_are_governed_and_trainable() -> None:
    run = fold_run()
    train, analyse, none = (make_steps(name, 1, consent=name)[0] for name in ("train", "analyse", "none"))
    outputs = run.feed([run.record("steps", step) for step in (train, analyse, none)])
    assert [event["trajectory_id"] for _, _, event in outputs] == ["train", "analyse"]
    assert [event["governed"]["trainable"] for _, _, event in outputs] == [True, False]
    assert outputs[1][2]["governed"]["flags"] == ["consent:analyse"]


def test_a_dead_letter_names_the_position_and_the_digest_of_the_record() -> None:
    run = fold_run()
    sound, broken = make_steps("t", 2)
    broken["loss_mask"] = [True]
    records = [run.record("steps", sound), run.record("steps", broken), run.record("steps", sound, key=b"other")]
    outputs = run.feed(records)
    letters = [(key, event) for topic, key, event in outputs if topic == "dead-letters"]
    assert [(key, e["error"], e["offset"], e["job"]) for key, e in letters] == [
        ("t", "invalid", 1, JOB),
        ("other", "wrong_key", 2, JOB),
    ]
    digest = hashlib.sha256(records[1].value or b"").hexdigest()
    assert (letters[0][1]["value_bytes"], letters[0][1]["value_sha256"]) == (len(records[1].value or b""), digest)


def test_a_dead_letter_contains_nothing_of_the_record() -> None:
    run = fold_run()
    [step] = make_steps("t", 1, messages=[new_message(role="user", content=MAIL)], loss_mask=[True])
    [(topic, _, letter)] = run.feed([run.record("steps", step)])
    assert topic == "dead-letters"
    assert letter["value"] is None
    assert MAIL not in str(letter)


def test_duplicates_within_the_window_are_dropped() -> None:
    run = fold_run(dedup_days=2)
    step = make_steps("t", 1)[0]
    assert len(run.feed([run.record("steps", step), run.record("steps", step)])) == 1
    assert run.feed([run.record("steps", step)]) == []
    run.tick(T0_US // 1000 + 86_400_000)
    assert run.feed([run.record("steps", step)]) == []
    run.tick(T0_US // 1000 + 4 * 86_400_000)
    assert run.state.content == {}
    assert [entry["action"] for entry in run.audit] == ["duplicate"] * 3
    assert len({entry["event_id"] for entry in run.audit}) == 3


def test_old_days_are_deleted_while_events_of_new_ones_arrive() -> None:
    later_us = T0_US + 4 * 86_400_000_000
    run = fold_run(dedup_days=2, now_us=lambda: later_us)
    run.tick(T0_US // 1000)
    for at_us in (T0_US, later_us):  # the event of the new day arrives before its first tick
        run.feed([run.record("steps", make_steps(f"t{at_us}", 1, at_us=at_us)[0])])
    content = dict(run.state.content)
    run.tick(later_us // 1000)
    assert 0 < len(run.state.content) == len(content) // 2


def test_the_strictest_consent_counts_and_a_change_takes_effect_at_once() -> None:
    consents: dict[str, Any] = {}
    run = fold_run(policies=ActivePolicies(b"key", {}, consents))

    def consent_of(name: str, **fields: Any) -> str | None:
        outputs = run.feed([run.record("steps", make_steps(name, 1, user="ada", **fields)[0])])
        return outputs[0][2]["consent"] if outputs else None

    assert consent_of("a") == "train"
    changes: list[tuple[str, str | None, Consent]] = [
        ("default/*/*", None, "analyse"),
        ("default/ada/*", "ada", "none"),
    ]
    for key, user, level in changes:
        consents[key] = new_consent_change(
            event_id="c", occurred_at_us=T0_US, tenant="default", user=user, consent=level
        )
        assert consent_of(f"b{level}") == (level if level != "none" else None)
    assert run.audit[-1]["found"] == {"consent:none": 1}
    del consents["default/ada/*"]
    assert consent_of("c", consent="none") is None
    assert "ada" not in str(run.audit)


def test_a_new_policy_version_applies_to_the_next_event() -> None:
    policies: dict[str, Any] = {}
    run = fold_run(policies=ActivePolicies(b"key", policies, {}))
    mail = new_message(role="user", content=MAIL)

    def governed(name: str) -> Any:
        [(_, _, event)] = run.feed([run.record("steps", make_steps(name, 1, messages=[mail])[0])])
        return event

    assert governed("a")["governed"]["redactions"] == {"email": 1}
    policies |= policy("[redaction.rules]\nemail = false", version=3)
    free = governed("b")
    assert free["governed"]["policy_version"] == 3
    assert free["event_id"] == derived_id(JOB, free["governed"]["source_event_id"], 3)
    assert free["messages"][0]["content"] == MAIL
    policies |= policy("[consent]\nmaximum = 'analyse'", tenant="*", version=9)
    assert governed("c")["consent"] == "train", "the tenant's own policy, not the one for all"
    del policies["default"]
    assert governed("d")["consent"] == "analyse"
    assert [entry["policy_version"] for entry in run.audit] == [0, 9]
    assert MAIL not in str(run.audit)


def test_pseudonyms_of_two_tenants_differ() -> None:
    run = fold_run()
    mail = new_message(role="user", content=MAIL)
    steps = [make_steps(name, 1, tenant=name, messages=[mail])[0] for name in ("a", "b")]
    texts = {event["messages"][0]["content"] for _, _, event in run.feed([run.record("steps", step) for step in steps])}
    assert len(texts) == 2


@pytest.mark.parametrize("document", ["[redaction]\ntiers = ['psychic']", "not TOML", "[future]\nentry = 1"])
def test_an_invalid_policy_stops_only_its_tenant(document: str) -> None:
    policies = ActivePolicies(b"key", policy(document, tenant="t", version=2), {})
    with pytest.raises(CannotGovern, match="version 2 of the policy of t cannot be applied"):
        policies.of("t")
    assert policies.of("default").version == 0


def test_an_erased_event_is_withheld() -> None:
    run = fold_run()
    [step] = make_steps("t", 1)
    assert run.feed([run.record("steps", step | {"seal_key": "gone", "policy_spans": []})]) == []
    assert run.audit[0]["found"] == {"erased": 1}


def test_an_event_that_arrives_after_its_erasure_is_withheld_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    run = fold_run(erased=lambda tenant, user, at_us: (tenant, user) == ("default", "ada") and at_us <= T0_US)
    late, later = make_steps("t", 2, user="ada", prompt_shared_tokens=0, prompt_shared_digest=None)
    [other] = make_steps("u", 1, user="bob")
    outputs = run.feed([run.record("steps", step) for step in (late, later, other)])
    assert [event["trajectory_id"] for _, _, event in outputs] == ["t", "u"]
    assert outputs[0][2]["step_index"] == 1, "the step after the erasure is governed"
    assert [entry["found"] for entry in run.audit] == [{"erased:late": 1}]
    assert "steps[0]@0" in caplog.text
    assert "ada" not in caplog.text + str(run.audit)


@settings(max_examples=40)
@given(st.data())
def test_redelivery_and_batching_change_nothing(data: st.DataObject) -> None:
    """Duplicates and the sizes of batches do not change the governed events."""
    events: list[tuple[str, Any]] = []
    for name in ("a", "b", "c"):
        steps = make_steps(name, 2)
        if data.draw(st.booleans()):
            steps[0]["messages"] = [new_message(role="user", content=MAIL)]
        events += [("steps", step) for step in steps] + [("feedback", make_ending(name, 2))]
    once = fold_run()
    expected = once.feed([once.record(topic, event) for topic, event in events])
    run = fold_run()
    outputs: list[Any] = []
    delivered: list[tuple[str, Any]] = []
    for place in range(len(events)):
        delivered += events[: place + 1][data.draw(st.integers(0, place)) :] if data.draw(st.booleans()) else []
        delivered.append(events[place])
    while delivered:
        size = data.draw(st.integers(1, len(delivered)))
        outputs += run.feed([run.record(topic, event) for topic, event in delivered[:size]])
        delivered = delivered[size:]
    assert outputs == expected
