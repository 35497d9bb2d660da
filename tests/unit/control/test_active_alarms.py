"""Test which alarms concern an agent and model of a tenant."""

import io
import json

import fastavro
import pytest
from sample_records import alarm

from stepstream.schemas import schema_text
from stepstream.services.control.scope import Scope, active_alarms

SCOPE, OTHERS = Scope("acme", "a", "demo"), Scope("default", "a", "demo")


def test_an_alarm_of_another_tenant_is_not_about_the_scope() -> None:
    raised = alarm(tenant="acme")
    assert active_alarms([raised], SCOPE) == (raised,)
    assert active_alarms([raised], OTHERS) == ()
    assert active_alarms([alarm(tenant="acme", state="cleared")], SCOPE) == ()
    assert active_alarms([alarm(tenant="acme", agent="b"), alarm(tenant="acme", model="m")], SCOPE) == ()


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
