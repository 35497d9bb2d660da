"""Test what happens to a canary and to a waiting decision when the policy changes meanwhile."""

from dataclasses import replace

import pytest
from fake_controller import AT_ONCE, BY_PEOPLE, LIMITS, SCOPE, World, of_weights, tick
from sample_records import checkpoint

from stepstream.services.control.acts import end
from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import Canary, Decision, History, Outcome, Past, Snapshot, Source
from stepstream.services.control.history import DecisionLog, weights_owner
from stepstream.services.control.scope import Scope, Serving
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS
from stepstream.topics.events import new_control_policy, new_decision, new_rollout
from stepstream.versions.rollouts import ModelVersions

NOW = 20_000 * 86_400_000_000
HOUR = 3_600_000_000
CANARY = Canary("weights", "8", "7", NOW - HOUR, 0.1)
STARTED = Past("d", NOW - HOUR, "weights", "canary", "8")
DISABLED = ControlPolicy.parse("[levers.weights]\nenabled = false")


def decided(canary: float, *past: Past) -> Decision:
    """Decide on a canary whose trajectories succeed at a rate; half of the stable ones do. The lever is disabled."""
    outcomes = []
    for number in range(400):
        outcomes.append(Outcome("canary", number % 100 < 100 * canary, per_canary=1))
        outcomes.append(Outcome("stable", number % 2 == 0))
    seen = Snapshot("default", "shop", "m", NOW, NOW, Source("v", "1:2"), outcomes=tuple(outcomes))
    return decide(seen, History(past, CANARY), DISABLED)


def test_a_canary_that_a_decision_began_is_taken_back_also_after_its_lever_was_disabled() -> None:
    assert (decided(0.1, STARTED).action, decided(0.1, STARTED).target) == ("rollback", "7")
    assert decided(0.9, STARTED).action == "hold", "it may end, and is not promoted"


def test_a_canary_that_a_person_began_is_left_alone_by_a_disabled_lever() -> None:
    assert decided(0.1).action == "hold"
    assert decided(0.1, replace(STARTED, target="6")).action == "hold"


def with_approved_canary(monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world whose controller decided on a canary, which a person approved and nobody began yet."""
    tick(monkeypatch)
    world = World(BY_PEOPLE, of_weights)
    while not world.decisions().pulls:
        world.controller().run_once()
    world.approve()
    return world


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("", ""),
        (f"quiet_hours = ['00:00-23:59']\n{LIMITS}{BY_PEOPLE}", "quiet hours"),
        (f"{LIMITS}{BY_PEOPLE}\nenabled = false", "the lever weights is disabled"),
    ],
)
def test_an_approved_decision_keeps_to_the_policy_in_force(
    policy: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = with_approved_canary(monkeypatch)
    world.policy = policy or world.policy
    world.controller().run_once()
    [act] = world.of(DECISION_ACTS)
    assert (act["state"], act["reason"]) == ("failed" if reason else "done", reason)


def test_a_decision_that_was_approved_while_no_controller_ran_names_who_approved_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = with_approved_canary(monkeypatch)
    [decision] = world.decisions().in_order()
    monkeypatch.setattr("stepstream.services.control.app.now_us", lambda: decision["watched_until_us"] + 1)
    world.controller().run_once()
    [act] = world.of(DECISION_ACTS)
    assert (act["state"], act["reason"].partition(" until ")[0]) == (
        "expired",
        "ada approved it in time, but no controller did it",
    )


def test_a_scope_whose_policy_disables_weights_leaves_them_to_another_one() -> None:
    first, second = SCOPE._replace(tenant="acme"), SCOPE._replace(tenant="zeta")
    log = DecisionLog()

    def owner(canary: int | None, *enabled: Scope) -> Scope | None:
        versions, share = ModelVersions(), 0.0 if canary is None else 0.1
        for number in (1, 2):
            versions.apply_checkpoint(number, checkpoint(number, model="m"))
        fields = {"stable_version": 2 if canary is None else 1, "canary_version": canary, "canary_share": share}
        versions.apply_rollout(new_rollout(event_id="r", occurred_at_us=1, model="m", **fields))  # type: ignore[arg-type]
        return weights_owner("m", log, Serving(versions, {}), [second, first], enabled)

    assert owner(None, first, second) == first
    assert owner(None, second) == second
    assert owner(None) == first, "nobody tries weights, and somebody judges what a person put out"
    began = new_decision(
        event_id="d", occurred_at_us=1, **first._asdict(), action="canary", lever="weights", target="2"
    )
    log.add(DECISIONS, began)
    log.add(DECISION_ACTS, end(began, "done", 2).value)
    assert owner(2, second) == first, "it ends the canary that it began"
    assert owner(None, second) == second
    assert weights_owner("other", log, Serving(ModelVersions(), {}), [first], [first]) is None


def test_of_two_tenants_with_a_model_the_one_tries_weights_whose_policy_enables_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tick(monkeypatch)
    scopes = [SCOPE._replace(tenant=tenant) for tenant in ("acme", "zeta")]
    monkeypatch.setattr("fake_controller.Queries.scopes", lambda *_: scopes)
    documents = (f"tenant = 'acme'\n{LIMITS}{AT_ONCE}\nenabled = false", f"tenant = 'zeta'\n{LIMITS}{AT_ONCE}")
    policies = [
        new_control_policy(
            event_id=scope.tenant, occurred_at_us=0, tenant=scope.tenant, name="p", version=1, document=one, hash=""
        )
        for scope, one in zip(scopes, documents, strict=True)
    ]
    monkeypatch.setattr("fake_controller.Log.policies", lambda _: policies)
    world = World(AT_ONCE, of_weights)
    for _ in range(2):
        world.controller().run_once()
    assert {one["tenant"] for one in world.decisions().in_order() if one["lever"] == "weights"} == {"zeta"}
