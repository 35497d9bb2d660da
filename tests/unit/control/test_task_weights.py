"""Test the weights of task families, and the record that gives them to the fleet."""

from stepstream.analytics.success import Attempts
from stepstream.services.control import acts
from stepstream.services.control.scope import Serving
from stepstream.services.control.task_weights import edge_of_ability
from stepstream.topics.catalogue import TRAINING_CONTROL
from stepstream.topics.events import new_decision, new_training_control
from stepstream.versions.rollouts import ModelVersions


def test_families_at_the_edge_of_ability_weigh_most() -> None:
    weights = edge_of_ability({"solved": Attempts(99, 99), "edge": Attempts(99, 50), "hopeless": Attempts(99, 0)})
    assert weights["edge"] > 0.99
    assert 0 < weights["solved"] < 0.03
    assert 0 < weights["hopeless"] < 0.03


def test_a_decision_to_resample_writes_the_weights_and_keeps_the_pause() -> None:
    decision = new_decision(event_id="d", occurred_at_us=1, agent="a", model="m", action="resample", lever="task_mix")
    before = new_training_control(event_id="t", occurred_at_us=0, model="m", paused=True)
    serving = Serving(ModelVersions(), {}, before)
    control, act = acts.do(decision, serving, 2, {"easy": 0.5})
    assert (control.topic, control.value["task_weights"], control.value["paused"]) == (
        TRAINING_CONTROL,
        {"easy": 0.5},
        True,
    )
    assert act.value["state"] == "done"
    [failed] = acts.do(decision, serving, 2, {})
    assert failed.value["state"] == "failed"
