"""Test the shadow replay of new weights: what follows from its result, who answers, and what is compared."""

import itertools
from typing import Any, cast

import numpy as np
import pytest
from fake_controller import SHADOWED, World, of_weights, tick
from recorded_attempts import PARENT, attempt
from scripted_chat import ScriptedChat
from stack_fixtures import with_settings

from stepstream.analytics.estimate import undefined
from stepstream.config import Settings
from stepstream.services.control.decide.canary import compared, judge
from stepstream.services.control.decide.policy import CanaryPolicy, ControlPolicy
from stepstream.services.control.decide.records import Canary, Shadow, Snapshot, Source
from stepstream.services.control.optimise.records import Budget, Meter
from stepstream.services.control.optimise.scoring import Scorer
from stepstream.services.control.optimise.shadow import ReplayUnavailable
from stepstream.services.control.optimise.weights import VersionReplay, compare, workers_with
from stepstream.services.control.search_process import SearchResult
from stepstream.services.control.simulate.fleet import Decider, run
from stepstream.services.control.simulate.scenarios import SCENARIOS
from stepstream.topics.catalogue import DECISION_ACTS, ROLLOUTS
from stepstream.topics.events import new_message, new_served_version, new_tool_call, new_worker_status
from stepstream.versions.rollouts import track_of

SNAPSHOT = Snapshot("default", "a", "m", 9, 9, Source("v", "1"))
WORSE, EQUAL = compared([-1.0] * 20 + [0.0] * 20), compared([0.0] * 40)
IMPOSSIBLE = Shadow(undefined("no worker has loaded m@2"))


def verdict(shadow: Shadow | None, mode: Any) -> tuple[str, str, str]:
    canary = Canary("weights", "2", "1", 1, 0.0, shadow=shadow)
    found = judge(SNAPSHOT, canary, CanaryPolicy(shadow=mode))
    return found.rule, found.action, found.target


@pytest.mark.parametrize(
    ("shadow", "mode", "expected"),
    [
        (None, "try", ("canary", "hold", "")),
        (None, "required", ("canary", "hold", "")),
        (None, "off", ("canary", "widen", "2")),
        (WORSE, "try", ("canary", "rollback", "1")),
        (EQUAL, "required", ("canary", "widen", "2")),
        (IMPOSSIBLE, "try", ("canary", "widen", "2")),
        (IMPOSSIBLE, "required", ("canary_without_result", "rollback", "1")),
    ],
)
def test_the_result_decides_whether_a_version_serves_anybody(shadow: Any, mode: Any, expected: Any) -> None:
    assert verdict(shadow, mode) == expected


def test_a_sound_version_is_taken_back_with_a_chance_of_at_most_the_policys() -> None:
    rng = np.random.default_rng(7)
    drawn = rng.random((2, 400, 100)) < 0.6
    results = [compared(after.astype(float) - before) for before, after in zip(*drawn, strict=True)]
    assert sum(one.worse >= 1 / CanaryPolicy().rollback_alpha for one in results) <= 0.05 * len(results)
    lost = rng.random((400, 100)) < 0.3
    bad = [compared(after.astype(float) - before) for before, after in zip(drawn[0], lost, strict=True)]
    assert sum(one.worse >= 1 / CanaryPolicy().rollback_alpha for one in bad) >= 0.85 * len(bad)


def test_few_tasks_give_no_result() -> None:
    assert compared([-1.0] * 9) == Shadow(undefined("9 tasks have a score, 10 are needed", 9, 9))


def run_until(world: World, decisions: int) -> list[str]:
    """Run a new controller each cycle until there are as many decisions besides holds."""
    controller = world.controller()
    for _ in itertools.repeat(None, 40):
        controller.run_once()
        if len(world.decisions().pulls) >= decisions:
            break
    return [f"{one['action']} {one['target']} {one['share']:g}" for one in world.decisions().in_order()]


def test_a_version_that_is_worse_on_recorded_prompts_is_stopped_before_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tick(monkeypatch)
    world = World(SHADOWED, of_weights)
    world.replayed = SearchResult(None, "", shadow=WORSE)
    assert run_until(world, 2) == ["canary 2 0", "rollback 1 0"]
    assert [one["canary_share"] for one in world.of(ROLLOUTS)] == [0.0, 0.0, 0.0]
    assert all(track_of("default", str(i), "m", 0.0) == "stable" for i in range(1000))
    assert world.of(ROLLOUTS)[1]["canary_version"] == 2
    assert world.of(ROLLOUTS)[-1]["taken_back_versions"] == [2]
    stopped = world.decisions().in_order()[-1]
    figures = {one["name"]: one for one in stopped["evidence"]}
    difference = figures["shadow_difference"]
    assert (difference["value"], difference["n"], difference["view"]) == (-0.5, 40, "decision-acts")
    assert (difference["high"] or 0) < 0
    assert (figures["e_shadow_worse"]["value"] or 0) >= 20
    [result] = [one for one in world.of(DECISION_ACTS) if one["evidence"]]
    assert result["decision_id"] == world.decisions().in_order()[0]["event_id"]
    assert result["description"].startswith("on 40 recorded prompts its score differs from its parent's by -0.500")


def test_a_replay_that_takes_too_long_does_not_delay_the_version_where_it_is_not_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tick(monkeypatch)
    monkeypatch.setattr("fake_controller.Search.poll", lambda _self: None)
    world = World(SHADOWED, of_weights)
    world.settings = with_settings(world.settings, control={"shadow_timeout_s": 5.0})
    assert run_until(world, 2) == ["canary 2 0", "widen 2 0.1"]
    reason = world.decisions().in_order()[-1]["reason"]
    assert reason.endswith("it took longer than 5 s: raise control.shadow_timeout_s")


def test_the_tests_of_a_canary_begin_with_its_first_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trajectories that were assigned during the replay have no counterpart on the canary."""
    tick(monkeypatch)
    world = World(SHADOWED, of_weights)
    assert run_until(world, 3)[1:] == ["widen 2 0.1", "widen 2 0.3"]
    first, second = world.decisions().in_order()[1:]
    assert {one["since_us"] for one in second["evidence"]} == {first["occurred_at_us"]}


def test_without_the_setting_a_canary_begins_with_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    tick(monkeypatch)
    world = World(SHADOWED.replace("try", "off"), of_weights)
    assert run_until(world, 2) == ["canary 2 0.1", "widen 2 0.3"]
    assert not any(one["evidence"] for one in world.of(DECISION_ACTS))


def test_each_version_answers_at_a_worker_that_has_it_and_another_version_is_no_result() -> None:
    def right(request: dict[str, Any], version: int, text: str) -> dict[str, Any]:
        return {"message": {"content": text}, "weight_versions": [{"version": version, "start": 0, "end": 1}]}

    call = new_tool_call(call_id="1", name="get", arguments='{"x": 1}')
    attempts = [
        attempt(i, "q", "", response=new_message(role="assistant", content="", tool_calls=[call])) for i in range(20)
    ]
    answer = {"content": None, "tool_calls": [{"id": "2", "function": {"name": "get", "arguments": '{"x":1}'}}]}
    settings = with_settings(Settings(), optimise={"timeout_s": 5.0})
    scorer = Scorer(attempts, compares_texts=False)
    with (
        ScriptedChat(lambda request: {**right(request, 1, ""), "message": answer}) as stable,
        ScriptedChat(lambda request: right(request, 2, "sorry")) as canary,
        VersionReplay(settings, scorer, stable.url, "stable", "m", 1) as before,
        VersionReplay(settings, scorer, canary.url, "canary", "m", 2) as after,
        VersionReplay(settings, scorer, canary.url, "canary", "m", 3) as other,
    ):
        shadow = compare(before, after, PARENT, attempts, Meter(Budget(calls=30, tokens=9999)))
        assert (shadow.difference.value, shadow.difference.n) == (-1.0, 15)
        assert {one["x-stepstream-track"] for one in canary.headers} == {"canary"}
        assert {one["x-stepstream-track"] for one in stable.headers} == {"stable"}
        with pytest.raises(ReplayUnavailable, match="m@2, not version 3"):
            other(PARENT, attempts[:1], Meter(Budget(calls=1, tokens=9)))


def test_texts_are_not_compared_with_those_that_the_parent_wrote() -> None:
    one = attempt(0, "q", "seven")
    said = new_message(role="assistant", content="7")
    assert Scorer([one]).score(one, said).score == 0.0
    assert Scorer([one], compares_texts=False).score(one, said).score is None


def test_workers_are_found_by_the_version_that_they_have_on_a_track() -> None:
    def worker(name: str, model: str, at_us: int, **tracks: int) -> Any:
        served = [new_served_version(track=cast(Any, track), version=one) for track, one in tracks.items()]
        return new_worker_status(
            event_id=name, occurred_at_us=at_us, worker_id=name, engine="torch", url=f"http://{name}/", model=model,
            state="serving", version=1, tracks=served,
        )  # fmt: skip

    def unknown(_worker_id: str) -> None:
        """Tell no time by the broker's clock."""

    wanted: Any = {"stable": 1, "canary": 2}
    both = worker("a", "m", 100, stable=1, canary=2)
    assert workers_with([both], "m", wanted, 100, 1.0, unknown) == {"stable": "http://a", "canary": "http://a"}
    apart = [worker("b", "m", 100, stable=1), worker("c", "m", 100, canary=2)]
    assert workers_with(apart, "m", wanted, 100, 1.0, unknown) == {"stable": "http://b", "canary": "http://c"}
    assert workers_with([both], "other", wanted, 100, 1.0, unknown) == {}
    assert workers_with([both], "m", wanted, 2_000_000, 1.0, unknown) == {}, "it is silent"
    assert workers_with([worker("d", "m", 100, stable=1, canary=3)], "m", wanted, 100, 1.0, unknown) == {
        "stable": "http://d"
    }
    assert workers_with([both], "m", wanted, 2_000_000, 1.0, {"a": 1_500_000}.get), "its clock is behind"


def test_in_a_simulated_fleet_a_poisoned_version_serves_nobody() -> None:
    policy = Decider(ControlPolicy(canary=CanaryPolicy(shadow="required")))
    result = run(SCENARIOS["poisoned checkpoint"], policy, 0)
    assert result.right
    assert result.harm < run(SCENARIOS["poisoned checkpoint"], Decider(ControlPolicy()), 0).harm
    assert [one.share for one in policy.decisions if one.lever == "weights"] == [0.0, 0.0]
