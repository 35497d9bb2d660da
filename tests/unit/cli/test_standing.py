"""Every reason has words, and what a label alone says agrees with what the learner makes of it."""

from typing import Any

import pytest
from labelled_records import LIMITS, labelled
from sample_records import training_decision

from stepstream.cli.trajectory_status import Facts, bar_of, standing_of
from stepstream.config import LearnerSettings, Settings
from stepstream.learner.data.attempt import attempt_of
from stepstream.learner.data.drop_reasons import REASONS, REMEDIES


def label(**fields: Any) -> Any:
    return labelled("g", 0, 1.0, **fields)


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_to_drop_is_told_in_words(reason: str) -> None:
    decision = training_decision(outcome="dropped", reason=reason, update=None)
    facts = Facts(steps={"count": 1}, label=label(), decisions=[decision])
    found = standing_of(facts, Settings().label, Settings().learner)
    assert (found.state, found.reason, found.would_change_it) == ("dropped", reason, REMEDIES[reason])
    assert REASONS[reason] in found.why


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
def test_the_label_alone_may_say_why(fields: dict[str, Any], reason: str) -> None:
    record = label(**fields)
    assert bar_of(record, LearnerSettings()) == reason
    assert attempt_of(record, (0, 0), LIMITS).untrainable == reason


@pytest.mark.parametrize(("objective", "reasons"), [("dpo", ["", "no_group", ""]), ("sft", ["", "", ""])])
def test_what_bars_it_is_the_objective_s_to_say(objective: Any, reasons: list[str]) -> None:
    config = LearnerSettings(objective=objective)
    records = [label(fidelity="text"), label(fidelity="text", group_id=None)]
    assert [bar_of(record, config) for record in records] == reasons[:2]
    assert bar_of(records[1], config, shown=True) == reasons[2]
    found = standing_of(Facts(steps={"count": 1}, label=label(fidelity="text", model="gpt")), Settings().label, config)
    assert found.state == "waiting"
    assert (
        "takes the group as it is"
        in standing_of(
            Facts(steps={"count": 1}, label=label(), group={"labelled": 1, "open": 0}), Settings().label, config
        ).would_change_it
    )


def test_what_has_no_group_waits_for_an_update_where_none_is_needed() -> None:
    facts = Facts(steps={"count": 1}, label=label(group_id=None))
    compared = standing_of(facts, Settings().label, Settings().learner)
    assert (compared.state, compared.reason) == ("not_trainable", "no_group")
    alone = standing_of(facts, Settings().label, Settings().learner.model_copy(update={"advantage": "reinforce_pp"}))
    assert alone.state == "waiting"
    assert alone.why == "it has no group, and waits for an update of the learner of demo"
