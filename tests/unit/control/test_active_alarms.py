"""Test which alarms concern an agent and model of a tenant."""

import io
import json

import fastavro
import pytest
from sample_records import alarm

from stepstream.schemas import schema_text
from stepstream.services.control.decide.diagnosis import diagnose
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import Groups, History
from stepstream.services.control.scope import Scope, Serving, active_alarms
from stepstream.services.control.snapshot import snapshot_of
from stepstream.services.control.statistics import Position, Statistics
from stepstream.topics.events import new_training_control
from stepstream.versions.rollouts import ModelVersions

SCOPE, OTHERS = Scope("acme", "a", "demo"), Scope("default", "a", "demo")


def test_an_alarm_of_another_tenant_is_not_about_the_scope() -> None:
    raised = alarm(tenant="acme")
    assert active_alarms([raised], SCOPE) == (raised,)
    assert active_alarms([raised], OTHERS) == ()
    assert active_alarms([alarm(tenant="acme", state="cleared")], SCOPE) == ()
    assert active_alarms([alarm(tenant="acme", agent="b"), alarm(tenant="acme", model="m")], SCOPE) == ()


def test_an_alarm_about_another_agent_keeps_the_pause_of_the_model() -> None:
    other = alarm(tenant="acme", agent="b")
    rest = [alarm(tenant="acme"), alarm(tenant="default", agent="b"), alarm(tenant="acme", agent="b", model="m")]
    rest += [alarm(tenant="acme", agent="b", state="cleared"), alarm(tenant="", kind="engine_gap", agent="")]
    assert active_alarms([*rest, other], SCOPE, of_others=True) == (other,)
    paused = new_training_control(event_id="t", occurred_at_us=1, tenant="acme", model="demo", paused=True)
    statistics = Statistics(Position("", 9), groups=Groups(50, 10, 0.5))
    for others, rules in (((), ["gradient"]), ((other,), [])):
        serving = Serving(ModelVersions(), {}, paused, (), others)
        snapshot = snapshot_of(SCOPE, 9, 0, statistics, serving, History())
        assert [one.rule for one in diagnose(snapshot, History(), ControlPolicy())] == rules


def test_an_alarm_about_a_model_concerns_the_agents_of_all_tenants() -> None:
    gap = alarm(tenant="", kind="engine_gap", agent="", reward_spec="")
    assert active_alarms([gap], SCOPE) == active_alarms([gap], OTHERS) == (gap,)


@pytest.mark.parametrize(("kind", "agent", "concerned"), [("success", "a", 0), ("engine_gap", "", 1)])
def test_an_alarm_of_an_earlier_release_concerns_the_default_tenant_or_the_model(
    kind: str, agent: str, concerned: int
) -> None:
    now = json.loads(schema_text("Alarm"))
    before = now | {"fields": [field for field in now["fields"] if field["name"] != "tenant"]}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, before, alarm(kind=kind, agent=agent))
    written.seek(0)
    read = fastavro.schemaless_reader(written, before, now)
    assert active_alarms([read], OTHERS) == (read,)  # type: ignore[list-item]
    assert len(active_alarms([read], SCOPE)) == concerned  # type: ignore[list-item]
