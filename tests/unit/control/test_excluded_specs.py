"""Test which reward specifications a pause excludes from training, and that later decisions keep them."""

import io
import json
from typing import Any

import fastavro

from stepstream.schemas import schema_text
from stepstream.services.control import acts
from stepstream.services.control.scope import Serving
from stepstream.services.registry.avro_text import canonical
from stepstream.services.registry.compatibility import DEFAULT_LEVEL, incompatibilities
from stepstream.topics.events import Alarm, Decision, TrainingControl, new_decision, new_training_control
from stepstream.versions.rollouts import ModelVersions


def decision(id: str, action: str, rule: str) -> Decision:
    return new_decision(
        event_id=id, occurred_at_us=1, agent="a", model="m", action=action, lever="weights", target="m", rule=rule
    )


def alarm(id: str, spec: str) -> Alarm:
    values: Any = {"alarm_id": id, "state": "raised", "model": "m", "agent": "a", "reward_spec": spec}
    return values


def control(one: Decision, before: TrainingControl | None, *alarms: Alarm) -> TrainingControl:
    record, act = acts.do(one, Serving(ModelVersions(), {}, before, alarms), 2, {"easy": 0.5})
    assert act.value["state"] == "done"
    written: TrainingControl = record.value
    return written


def test_a_pause_for_a_gamed_reward_excludes_its_specifications_until_it_is_undone() -> None:
    alarms = (alarm("1", "b@2"), alarm("2", "a@1"), alarm("3", ""))
    paused = control(decision("d1", "pause", "diverging_rewards"), None, *alarms)
    assert list(paused["excluded_reward_specs"].items()) == [("a@1", "d1"), ("b@2", "d1")]
    resumed = control(decision("d2", "train", "gradient"), paused)
    assert (resumed["paused"], resumed["excluded_reward_specs"]) == (False, paused["excluded_reward_specs"])
    mixed = control(decision("d3", "resample", "coverage"), resumed)
    again = control(decision("d4", "pause", "diverging_rewards"), mixed, alarm("4", "c@1"))
    assert again["excluded_reward_specs"] == {"a@1": "d1", "b@2": "d1", "c@1": "d4"}


def test_a_pause_of_another_rule_excludes_nothing() -> None:
    paused = control(decision("d1", "pause", "staleness"), None, alarm("1", "a@1"))
    assert (paused["paused"], paused["excluded_reward_specs"]) == (True, {})


def test_records_from_before_exclude_nothing_and_earlier_readers_ignore_the_field() -> None:
    now = json.loads(schema_text("TrainingControl"))
    before = now | {"fields": [field for field in now["fields"] if field["name"] != "excluded_reward_specs"]}
    assert not incompatibilities(DEFAULT_LEVEL, canonical(json.dumps(now)), [(1, canonical(json.dumps(before)))])
    record = new_training_control(event_id="t", occurred_at_us=0, model="m", excluded_reward_specs={"a@1": "d1"})
    old = {name: value for name, value in record.items() if name != "excluded_reward_specs"}
    assert resolved(old, before, now) == old | {"excluded_reward_specs": {}}
    assert resolved(record, now, before) == old


def resolved(record: Any, written: Any, read: Any) -> Any:
    """Return a record of one schema as a reader of another one has it."""
    bytes_of = io.BytesIO()
    fastavro.schemaless_writer(bytes_of, written, record)
    bytes_of.seek(0)
    return fastavro.schemaless_reader(bytes_of, written, read)
