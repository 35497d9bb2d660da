"""Test that each job keeps two tenants apart that use the same names, and even the same event ids."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fold_harness import FoldRun, MemoryState
from label_runs import FEEDBACK, NOW_MS, STEPS, Run
from measure_runs import measure_run
from sample_records import trajectory
from stream_records import make_ending, make_feedback, make_steps

from stepstream.config import CurateSettings
from stepstream.jobs.curate import JOB as CURATE
from stepstream.jobs.curate import Curator
from stepstream.jobs.curation.signature import PERMUTATIONS
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold
from stepstream.jobs.governance.inspect_fold import JOB as INSPECT
from stepstream.jobs.governance.inspect_fold import InspectFold
from stepstream.jobs.governance.trajectory_policy import NoPolicies
from stepstream.jobs.judging.fold import COUNTED, JudgeFold
from stepstream.jobs.judging.fold import JOB as JUDGE
from stepstream.jobs.runtime.day_limit import DayLimit
from stepstream.jobs.runtime.expiry import Expiry
from stepstream.topics.events import new_governance, new_message, new_policy
from stepstream.topics.ids import derived_id, trajectory_key, trajectory_name

TENANTS = ("ours", "theirs", "default")
STATE = Path(__file__).parents[2] / "data/states/measure_over_tenants.json"


def governed(event: Any) -> Any:
    """Return an event as `govern` publishes it."""
    source = event["event_id"]
    stamp = new_governance(source_event_id=source, job="govern@1", trainable=True)
    own = derived_id("govern@1", source, tenant=event["tenant"])
    return {**event, "event_id": own, "governed": stamp}


def interleaved(*of_tenants: list[Any]) -> list[Any]:
    return [event for events in zip(*of_tenants, strict=True) for event in events]


def test_an_id_of_a_tenant_is_no_other_tenants() -> None:
    names = [("a", "b\0c"), ("a", "bc"), ("ab", "c"), ("", "abc"), ("a\x1f", "b"), ("a", "\x1fb"), ("default", "x")]
    assert len({trajectory_key(*name) for name in names}) == len(names)
    assert len({trajectory_name(*name) for name in names}) == len(names)
    ids = {derived_id("j@1", "x", tenant=tenant) for tenant in (*TENANTS, "tenant\x1fours")}
    assert len(ids) == 4
    assert derived_id("j@1", "x") == derived_id("j@1", "x", tenant="default")


def test_label_labels_the_trajectory_of_each_tenant() -> None:
    run = Run()
    steps = interleaved(*([governed(s) for s in make_steps("t", 3, tenant=one, group_id="g")] for one in TENANTS))
    assert run.labels(*((STEPS, step) for step in steps)) == []
    values = dict(zip(TENANTS, (1.0, 0.25, 0.0), strict=True))
    endings = [governed(make_ending("t", 3, value, tenant=tenant)) for tenant, value in values.items()]
    labels = run.labels(*((FEEDBACK, ending) for ending in endings))
    assert {label["tenant"]: label["reward"] for label in labels} == values
    assert {(label["revision"], len(label["steps"]), label["complete"]) for label in labels} == {(1, 3, True)}
    assert len({label["event_id"] for label in labels}) == len(TENANTS)
    late = governed(make_feedback("t", 0.5, number=5, tenant="theirs"))
    assert [(label["tenant"], label["revision"]) for label in run.labels((FEEDBACK, late))] == [("theirs", 2)]


def test_label_decides_the_timeout_of_each_tenant() -> None:
    run = Run()
    run.labels(*((STEPS, governed(step)) for tenant in TENANTS for step in make_steps("t", 2, tenant=tenant)))
    closures = [event for _, _, event in run.tick(NOW_MS + 601_000)]
    assert {closed["tenant"] for closed in closures} == set(TENANTS)
    assert len({closed["event_id"] for closed in closures}) == len(TENANTS)
    [mine, *_] = closures
    assert [label["tenant"] for label in run.labels(("closures", mine))] == [mine["tenant"]]


def inspect_run(state: MemoryState) -> FoldRun:
    """Find a name in each step and hold its trajectory."""
    inspection = SimpleNamespace(share=1.0, hold=True)
    recogniser = SimpleNamespace(count_names=lambda texts: 1)
    held = Expiry(state, 37, 100)  # type: ignore[arg-type]
    return FoldRun(INSPECT, InspectFold(lambda tenant: (1, inspection), recogniser, held), state)


def test_a_hold_is_of_one_tenants_trajectory() -> None:
    run = Run()
    for tenant in TENANTS:
        steps = [(STEPS, governed(step)) for step in make_steps("t", 2, tenant=tenant)]
        run.labels(*steps, (FEEDBACK, governed(make_ending("t", 2, tenant=tenant))))
    inspect = inspect_run(MemoryState())
    records = [inspect.record(STEPS, governed(make_steps("t", 1, tenant=tenant)[0])) for tenant in TENANTS]
    holds = [event for topic, _, event in inspect.feed(records) if topic == "curation"]
    assert [hold["tenant"] for hold in holds] == list(TENANTS)
    assert len({hold["event_id"] for hold in holds}) == len(TENANTS)
    for hold in holds:
        assert [label["tenant"] for label in run.labels(("curation", hold))] == [hold["tenant"]]


def test_a_trajectory_held_by_an_earlier_release_is_not_held_again() -> None:
    state = MemoryState()
    state.content[b"ht"] = b""
    run = inspect_run(state)
    records = [run.record(STEPS, governed(make_steps("t", 1, tenant=tenant)[0])) for tenant in TENANTS]
    assert [e["tenant"] for topic, _, e in run.feed(records) if topic == "curation"] == ["ours", "theirs"]


def test_govern_takes_the_same_ids_of_each_tenant() -> None:
    policies = ActivePolicies(b"key", {}, {})
    fold = GovernFold(policies, dedup_days=7, max_future_s=60.0, now_us=lambda: NOW_MS * 1000)
    run = FoldRun("govern@1", fold, MemoryState())
    steps = interleaved(*(make_steps("t", 2, tenant=tenant) for tenant in TENANTS))
    found = [event for _, _, event in run.feed([run.record("steps", step) for step in steps])]
    assert len(found) == len({event["event_id"] for event in found}) == 2 * len(TENANTS)
    again = [event["action"] for _, _, event in run.feed([run.record("steps", step) for step in steps])]
    assert again == ["duplicate"] * len(found)
    [(topic, _, letter)] = run.feed([run.record("steps", steps[0] | {"tenant": "a\0b"})])
    assert (topic, letter["error"]) == ("dead-letters", "invalid")


def test_judge_asks_about_the_step_of_the_same_tenant() -> None:
    asked: list[str] = []

    def score_all(questions: list[str]) -> list[float]:
        asked.extend(questions)
        return [0.5] * len(questions)

    scorer = SimpleNamespace(score_all=score_all)
    run = FoldRun(JUDGE, None, MemoryState())  # type: ignore[arg-type]
    limit = DayLimit(run.state, COUNTED, 1_000)  # type: ignore[arg-type]
    run.fold = JudgeFold(scorer, run.codec, NoPolicies(), [], [], lambda: None, limit)
    talks = []
    for tenant in TENANTS:
        steps = make_steps("t", 2, tenant=tenant)
        for step in steps:
            step["messages"] = [new_message(role="user", content="and then?")]
            step["response"] = new_message(role="assistant", content=f"said by {tenant}")
        talks.append([governed(step) for step in steps])
    scores = [event for _, _, event in run.feed([run.record(STEPS, step) for step in interleaved(*talks)])]
    assert [score["tenant"] for score in scores] == list(TENANTS)
    assert len({score["event_id"] for score in scores}) == len(TENANTS)
    for tenant, question in zip(TENANTS, asked, strict=True):
        assert f"said by {tenant}" in question
        assert question.count("said by") == 1


def test_measure_counts_the_trajectory_of_each_tenant() -> None:
    run = measure_run()
    labels = [trajectory("t", tenant=tenant, reward=0.5) for tenant in TENANTS]
    events = [event for _, _, event in run.feed([run.record("labeled-trajectories", label) for label in labels])]
    own = {event["tenant"]: event for event in events if event.get("scope") == "trajectory"}
    assert {tenant: event["trajectory_id"] for tenant, event in own.items()} == dict.fromkeys(TENANTS, "t")
    assert len({event["key"] for event in own.values()}) == len(TENANTS)
    cohorts = {event["tenant"]: event for event in events if event.get("scope") == "cohort" and not event["tool"]}
    assert {tenant: cohort["trajectories"] for tenant, cohort in cohorts.items()} == dict.fromkeys(TENANTS, 1)
    assert len({event["key"] for event in events}) == len(events)
    revised = trajectory("t", tenant="theirs", reward=1.0, revision=2, event_id=derived_id("test", "second"))
    events = [event for _, _, event in run.feed([run.record("labeled-trajectories", revised)])]
    [cohort] = [event for event in events if event.get("scope") == "cohort" and not event["tool"]]
    assert (cohort["tenant"], cohort["trajectories"], cohort["reward_sum"]) == ("theirs", 1, 1.0)


def test_the_keys_of_the_default_tenants_statistics_are_those_of_earlier_releases() -> None:
    run = measure_run()
    ended = trajectory("t", tools=[], end="terminated")
    events = [event for _, _, event in run.feed([run.record("labeled-trajectories", ended)])]
    assert [(event["tenant"], event["key"], event["event_id"]) for event in events] == [
        ("default", '["a","demo",1,"","train","",0]', "9cf975b3-1e8a-5437-8a0e-673fb2ae92f1"),
        ("default", "t", "b2a6055f-fc94-5194-9cdf-57c803f01990"),
        ("default", '["", "a", "demo", "train", "outcome", 1, 488888, 0]', "fdc9c1fa-5205-5820-8e16-91c3b77d84df"),
    ]
    state = hashlib.sha256(repr(sorted(run.state.content.items())).encode()).hexdigest()
    assert state == "b006b763122ae4c4eaace1c5148092a4523f6833b03f176705d3562a1b7eefc9"


def test_a_revision_leaves_the_sums_over_tenants_of_an_earlier_release() -> None:
    """`measure_over_tenants.json` is a state of commit 08bc7c20, keys and values in hex.

    It holds a trajectory `t` of `default` and one of `acme`, both in a group `g`.
    """
    run = measure_run()
    run.state.content = {
        bytes.fromhex(key): bytes.fromhex(value) for key, value in json.loads(STATE.read_text()).items()
    }
    revised = trajectory("t", tenant="acme", group_id="g", tools=[], revision=2, event_id="t/2", reward=1.0)
    events = [event for _, _, event in run.feed([run.record("labeled-trajectories", revised)])]
    cohorts = {event["tenant"]: event for event in events if event.get("scope") == "cohort"}
    sums = {tenant: (one["trajectories"], one["reward_sum"]) for tenant, one in cohorts.items()}
    assert sums == {"default": (1, 0.75), "acme": (1, 1.0)}
    rewards = {
        event["tenant"]: (series["trajectories"], series["groups"], series["total"], series["group_squares"])
        for event in events
        for series in event.get("components", [])
        if series["kind"] == "reward"
    }
    assert rewards == {"default": (1, 1, 0.75, 0.75**2), "acme": (1, 1, 1.0, 1.0)}


def test_measure_takes_over_the_trajectory_that_an_earlier_release_counted() -> None:
    run = measure_run()
    run.feed([run.record("labeled-trajectories", trajectory("t", tenant="ours", reward=0.5))])
    of_tenant, by_id = b"t" + trajectory_name("ours", "t"), b"t" + _name_by_id("t")
    run.state.content[by_id] = run.state.content.pop(of_tenant)
    other = trajectory("t", tenant="theirs", reward=0.25)
    revised = trajectory("t", tenant="ours", reward=1.0, revision=2, event_id=derived_id("test", "second"))
    events = [e for _, _, e in run.feed([run.record("labeled-trajectories", label) for label in (other, revised)])]
    cohorts = {event["tenant"]: event for event in events if event.get("scope") == "cohort" and not event["tool"]}
    sums = {tenant: (cohort["trajectories"], cohort["reward_sum"]) for tenant, cohort in cohorts.items()}
    assert sums == {"ours": (1, 1.0), "theirs": (1, 0.25)}


def _name_by_id(trajectory_id: str) -> bytes:
    from stepstream.jobs.labels.trajectory_store import name_of

    return name_of(trajectory_id)


@pytest.mark.parametrize("tenant", TENANTS)
def test_curate_remembers_the_decision_of_each_tenant(tenant: str) -> None:
    policy = new_policy(
        event_id="p", occurred_at_us=0, tenant="*", version=1, document="[near_duplicates]\ncap = 1\nwindow = 50\n"
    )
    signature = list(range(PERMUTATIONS))

    def label(name: str, of: str) -> Any:
        return trajectory(name, tenant=of, signature=signature, group_id=None, flags=[], consent="train", split="train")

    curator = Curator({"*": policy}, CurateSettings())
    assert [curator.decide(label("first", one)) for one in TENANTS] == [None] * len(TENANTS)
    hold = curator.decide(label("copy", tenant))
    assert hold is not None
    assert (hold["tenant"], hold["by"]) == (tenant, CURATE)
    again = Curator({"*": policy}, CurateSettings())
    again.restore(hold)
    others = [one for one in TENANTS if one != tenant]
    for one in TENANTS:
        again.decide(label("first", one))
    assert again.decide(label("copy", tenant)) is None
    assert [decided["tenant"] for one in others if (decided := again.decide(label("copy", one)))] == others
