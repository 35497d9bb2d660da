"""The status of a trajectory has a reason in words and agrees with the learner's own decision."""

from typing import Any

import pytest
from labelled_records import LIMITS, labelled
from sample_records import training_decision

from stepstream.config import LearnerSettings, Settings
from stepstream.learner.data.attempt import attempt_of
from stepstream.learner.data.drop_reasons import REASONS, REMEDIES
from stepstream.services.console.trajectories.status import Facts, exclusion_reason, status_of
from stepstream.topics.events import new_sampling_mask


def label(**fields: Any) -> Any:
    return labelled("g", 0, 1.0, **fields)


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_drop_reason_has_a_sentence_and_its_remedy(reason: str) -> None:
    decision = training_decision(outcome="dropped", reason=reason, update=None)
    facts = Facts(steps={"count": 1}, label=label(), decisions=[decision])
    status = status_of(facts, Settings().label, Settings().learner)
    assert (status.state, status.reason, status.would_change_it) == ("dropped", reason, REMEDIES[reason])
    assert REASONS[reason] in status.why


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"split": "eval"}, "split"),
        ({"group_id": None}, "no_group"),
        ({"consent": "analyse"}, "consent"),
        ({"fidelity": "text"}, "fidelity"),
        ({"trainable": False, "success": None}, "no_outcome"),
        ({"trainable": False, "pending": ["judge"]}, "no_outcome"),
        ({"trainable": False}, "not_trainable"),
    ],
)
def test_the_reason_from_a_label_agrees_with_the_learner(fields: dict[str, Any], reason: str) -> None:
    record = label(**fields)
    assert exclusion_reason(record, LearnerSettings(preset="tiny")) == reason
    assert attempt_of(record, (0, 0), LIMITS).untrainable == reason


@pytest.mark.parametrize(
    ("fields", "besides"),
    [
        ({}, ""),
        ({"success": None}, REASONS["no_outcome"]),
        ({"success": None, "consent": "analyse"}, REASONS["consent"]),
    ],
)
def test_a_hold_comes_before_any_other_reason(fields: dict[str, Any], besides: str) -> None:
    record = label(trainable=False, flags=["outcome:missing", "held:strange", "held:quality:empty"], **fields)
    status = status_of(Facts(steps={"count": 1}, label=record), Settings().label, Settings().learner)
    assert (status.state, status.reason) == ("not_trainable", "not_trainable")
    assert status.why.startswith("it is held: strange, quality:empty" + (f"; besides, {besides}" if besides else " ("))
    assert "(flags: outcome:missing, held:strange, held:quality:empty)" in status.why
    assert status.would_change_it.startswith("`stepstream quarantine release`")


def test_a_hold_comes_before_the_decision_of_the_learner() -> None:
    record = label(trainable=False, success=None, flags=["held:strange"])
    decision = training_decision(outcome="dropped", reason="no_outcome", update=None)
    facts = Facts(steps={"count": 1}, label=record, decisions=[decision])
    status = status_of(facts, Settings().label, Settings().learner)
    assert (status.state, status.reason) == ("dropped", "no_outcome")
    assert status.why.startswith("it is held: strange; besides, the learner of ")
    assert status.would_change_it == f"`stepstream quarantine release`; then {REMEDIES['no_outcome']}"


@pytest.mark.parametrize(
    ("kept", "reason", "words"),
    [
        (None, "truncated_sampling", "no sampling mask tells which tokens were left"),
        (0, "", "trained on by"),
        (1, "sampling_mask", "it lacks a token that was sampled"),
    ],
    ids=["without a mask", "with its mask", "with another response's mask"],
)
def test_truncated_tokens_are_explained_by_their_mask(kept: int | None, reason: str, words: str) -> None:
    record = label()
    for sequence in record["sequences"]:
        ids = [
            (sequence["token_ids"][at] + (kept or 0)) % LIMITS.vocabulary
            for span in sequence["spans"]
            for at in range(span["start"], span["end"])
        ]
        sequence["spans"] = [span | {"restriction": "truncated"} for span in sequence["spans"]]
        if kept is not None:
            sequence["sampling_mask"] = new_sampling_mask(counts=[1] * len(ids), token_ids=ids)
    made = attempt_of(record, (0, 0), LIMITS)
    assert made.untrainable == reason
    outcome = {"outcome": "dropped", "update": None} if reason else {"outcome": "trained"}
    facts = Facts(steps={"count": 1}, label=record, decisions=[training_decision(reason=made.untrainable, **outcome)])
    status = status_of(facts, Settings().label, Settings().learner)
    assert words in status.why
    assert ("gateway.sampling_mask_ids" in status.would_change_it) == (reason == "truncated_sampling")


@pytest.mark.parametrize(("objective", "reasons"), [("dpo", ["", "no_group", ""]), ("sft", ["", "", ""])])
def test_the_exclusion_reason_depends_on_the_objective(objective: Any, reasons: list[str]) -> None:
    config = LearnerSettings(preset="tiny", objective=objective)
    records = [label(fidelity="text"), label(fidelity="text", group_id=None)]
    assert [exclusion_reason(record, config) for record in records] == reasons[:2]
    assert exclusion_reason(records[1], config, is_demonstrated=True) == reasons[2]
    status = status_of(Facts(steps={"count": 1}, label=label(fidelity="text", model="gpt")), Settings().label, config)
    assert status.state == "waiting"
    assert (
        "trains on the incomplete group"
        in status_of(
            Facts(steps={"count": 1}, label=label(), group={"labelled": 1, "open": 0}), Settings().label, config
        ).would_change_it
    )


def test_a_trajectory_without_a_group_waits_for_an_update_if_the_objective_needs_no_group() -> None:
    facts = Facts(steps={"count": 1}, label=label(group_id=None))
    compared = status_of(facts, Settings().label, Settings().learner)
    assert (compared.state, compared.reason) == ("not_trainable", "no_group")
    alone = status_of(facts, Settings().label, Settings().learner.model_copy(update={"advantage": "reinforce_pp"}))
    assert alone.state == "waiting"
    assert alone.why == "it has no group and waits for an update of the learner of demo"
