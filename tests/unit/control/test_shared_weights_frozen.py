"""Test that weights which several tenants share start nothing while one of the agents that they serve is frozen."""

from typing import Any

import fake_controller
import pytest
from fake_controller import AT_ONCE, BY_PEOPLE, SCOPE, World, of_weights, tick

from stepstream.services.control.scope import Scope
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS
from stepstream.topics.events import new_control_policy

OTHER = Scope("other", "b", SCOPE.model)
POLICY = 'tenant = "other"\n[levers.weights]\nenabled = false'


class OtherTenant:
    """Another tenant whose agent uses the same weights."""

    is_frozen = False

    def record(self) -> Any:
        made = new_control_policy(
            event_id="o", occurred_at_us=0, tenant="other", name="o", version=1, document=POLICY, hash=""
        )
        return {**made, "frozen": self.is_frozen}


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> OtherTenant:
    tick(monkeypatch)
    tenant, policies = OtherTenant(), fake_controller.Log.policies
    monkeypatch.setattr(fake_controller.Queries, "scopes", lambda *_: [SCOPE, OTHER])
    monkeypatch.setattr(fake_controller.Log, "policies", lambda self: [*policies(self), tenant.record()])
    return tenant


def pulled(world: World) -> list[str]:
    return [one["action"] for one in world.decisions().in_order()]


def test_no_canary_of_shared_weights_starts_while_another_tenant_is_frozen(other: OtherTenant) -> None:
    world, other.is_frozen = World(AT_ONCE, of_weights), True
    controller = world.controller()
    for _ in range(3):
        controller.run_once()
    assert pulled(world) == []
    [hold] = [one for one in world.of(DECISIONS) if one["tenant"] == SCOPE.tenant]
    assert [(one["rule"], one["reason"]) for one in hold["lost"]] == [
        ("new_version", "another agent that the weights serve is frozen")
    ]
    other.is_frozen = False
    controller.run_once()
    assert pulled(world) == ["canary"]


def test_a_canary_of_shared_weights_is_not_widened_but_taken_back_while_another_tenant_is_frozen(
    other: OtherTenant,
) -> None:
    world = World(AT_ONCE, of_weights)
    controller = world.controller()
    while "promote" not in pulled(world):
        other.is_frozen = "canary" in pulled(world) and not other.is_frozen  # every other look
        before = pulled(world)
        controller.run_once()
        assert not other.is_frozen or pulled(world) == before
    other.is_frozen = True
    while len(pulled(world)) < 4:
        controller.run_once()
    assert pulled(world)[-1] == "rollback"


def test_an_approved_canary_of_shared_weights_fails_while_another_tenant_is_frozen(other: OtherTenant) -> None:
    world = World(BY_PEOPLE, of_weights)
    controller = world.controller()
    while not pulled(world):
        controller.run_once()
    other.is_frozen = True
    world.approve()
    controller.run_once()
    [act] = world.of(DECISION_ACTS)
    assert (act["state"], act["reason"]) == ("failed", "another agent that the weights serve is frozen")
