"""Statistics: totals with versions, equal for any order and repetition of labels."""

from dataclasses import astuple
from typing import Any

import pytest
from fold_harness import FoldRun, state_added, state_removed
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_runs import measure_run

from stepstream.jobs.statistics import log_window
from stepstream.jobs.statistics.alarms import merge_sums
from stepstream.jobs.statistics.cohorts import REWARD_UNIT
from stepstream.jobs.statistics.component_sums import from_records
from stepstream.topics.catalogue import COMPONENT_STATS, TRAJECTORY_STATS
from stepstream.topics.events import new_labeled_step, new_labeled_trajectory, new_tool_use
from stepstream.topics.ids import derived_id, trajectory_name

SUMS = [
    "trajectories",
    "successes",
    "failures",
    "truncated",
    "steps",
    "errors",
    "tool_calls",
    "prompt_tokens",
    "response_tokens",
    "reward_sum",
    "duration_ms_sum",
]


def labelled(name: str, revision: int = 1, **fields: Any) -> Any:
    steps = [
        new_labeled_step(step_index=i, event_id=f"{name}-{i}", reward=0.0, return_to_go=0.0, duration_ms=0.5)
        for i in range(2)
    ]
    values: dict[str, Any] = {
        "event_id": derived_id("test", name, revision),
        "occurred_at_us": 1_760_000_000_000_000 + revision,
        "trajectory_id": name,
        "revision": revision,
        "consent": "train",
        "agent": "agent",
        "harness_version": "h1",
        "model": "demo",
        "version_min": 1,
        "version_max": 2,
        "fidelity": "token",
        "end": "terminated",
        "closed_by": "end",
        "complete": True,
        "success": True,
        "reward": 0.1,
        "reward_spec": "outcome@0",
        "steps": steps,
        "tools": [new_tool_use(name="get", calls=3, errors=1, duration_ms=2.0)],
        "prompt_tokens": 10,
        "response_tokens": 4,
        "started_at_us": 0,
        "ended_at_us": 1,
        "labelled_by": "label@1",
    }
    return new_labeled_trajectory(**(values | fields))


DAY_MS = 86_400_000
WINDOW_MS = 28 * DAY_MS
FIRST_MS = 1_798_761_600_000
"""Beginning of 2027, and of the first window after the one of earlier releases."""


def feed(run: FoldRun, *labels: Any, at_ms: int = 1_760_000_100_000) -> list[dict[str, Any]]:
    records = [run.record("labeled-trajectories", label, at_ms=at_ms) for label in labels]
    return [event for topic, _, event in run.feed(records) if topic == TRAJECTORY_STATS]


def cohorts(snapshots: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The sums over the newest snapshot of each key, by what tells cohorts apart, without those that are 0."""
    newest: dict[str, dict[str, Any]] = {}
    for snapshot in snapshots:
        if snapshot["scope"] == "cohort":
            key = snapshot["key"]
            assert key not in newest or snapshot["version"] > newest[key]["version"]
            newest[key] = snapshot
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for snapshot in newest.values():
        of = sums.setdefault((snapshot["policy_version"], snapshot["split"], snapshot["tool"]), dict.fromkeys(SUMS, 0))
        for name in SUMS:
            of[name] += round(snapshot[name] * REWARD_UNIT)  # integers, as in the state
    whole = {key: {name: value / REWARD_UNIT for name, value in values.items()} for key, values in sums.items()}
    return {key: values for key, values in whole.items() if any(values.values())}


def test_one_snapshot_of_each_cohort_and_trajectory_that_a_batch_touched() -> None:
    run = measure_run()
    snapshots = feed(run, labelled("a"), labelled("b", success=False, reward=0.0), labelled("c", split="eval"))
    assert len({snapshot["event_id"] for snapshot in snapshots}) == len(snapshots) == 3 + 4
    cohort = cohorts(snapshots)[2, "train", ""]
    assert cohort == {
        "trajectories": 2,
        "successes": 1,
        "failures": 1,
        "truncated": 0,
        "steps": 4,
        "errors": 0,
        "tool_calls": 6,
        "prompt_tokens": 20,
        "response_tokens": 8,
        "reward_sum": 0.1,
        "duration_ms_sum": 2.0,
    }
    tool = cohorts(snapshots)[2, "train", "get"]
    assert (tool["trajectories"], tool["tool_calls"], tool["errors"], tool["duration_ms_sum"]) == (2, 6, 2, 4.0)
    one = next(s for s in snapshots if s["trajectory_id"] == "a")
    assert (one["key"], one["version"], one["trajectories"], one["reward_sum"]) == ("a", 1, 1, 0.1)


def test_a_newer_revision_replaces_the_older_one() -> None:
    run = measure_run()
    first = feed(run, labelled("a", success=None, reward=0.0, version_max=1))
    second = feed(run, labelled("a", 2, version_max=2))
    assert cohorts(first + second).keys() == {(2, "train", ""), (2, "train", "get")}
    # The cohort that lost it says so in a snapshot of its own.
    assert {(s["policy_version"], s["trajectories"]) for s in second if s["scope"] == "cohort"} == {(1, 0), (2, 1)}
    assert feed(run, labelled("a", success=False)) == []


@pytest.mark.parametrize(
    ("end", "success", "pending", "counted"),
    [
        ("open", None, [], (0, 0, 0)),
        ("terminated", None, [], (0, 0, 0)),
        ("truncated", None, [], (0, 1, 1)),
        ("truncated", None, ["checked"], (0, 0, 1)),
        ("truncated", True, [], (1, 0, 1)),
        ("truncated", True, ["checked"], (1, 0, 1)),
        ("open", False, [], (0, 1, 0)),
    ],
)
def test_an_unknown_outcome_is_a_failure_only_after_a_time_out_that_waits_for_nothing(
    end: str, success: bool | None, pending: list[str], counted: tuple[int, ...]
) -> None:
    run = measure_run()
    label = run.record("labeled-trajectories", labelled("a", success=success, end=end, pending=pending))
    published = run.feed([label])
    cohort = cohorts([event for topic, _, event in published if topic == TRAJECTORY_STATS])[2, "train", ""]
    assert (cohort["successes"], cohort["failures"], cohort["truncated"]) == counted
    [components] = [event["components"] for topic, _, event in published if topic == COMPONENT_STATS]
    assert [(one["trajectories"], one["total"]) for one in components if one["kind"] == "success"] == (
        [(sum(counted[:2]), counted[0])] if any(counted[:2]) else []
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Revisions of a few trajectories, each in order."""
    labels = []
    for name in ("a", "b", "c"):
        labels += [
            labelled(
                name,
                revision,
                reward=draw(st.floats(-1, 1, width=32)),
                success=draw(st.sampled_from([True, False, None])),
                version_max=draw(st.integers(1, 2)),
            )
            for revision in range(1, draw(st.integers(1, 3)) + 1)
        ]
    return labels


@settings(max_examples=80)
@given(histories(), st.data())
def test_order_redelivery_and_batches_do_not_matter(labels: list[Any], data: st.DataObject) -> None:
    """The law: the sums are those of each trajectory's newest revision, to the last bit."""
    newest = {label["trajectory_id"]: label for label in labels}
    expected = cohorts(feed(measure_run(), *newest.values()))
    delivered = data.draw(st.permutations(labels))
    delivered += data.draw(st.lists(st.sampled_from(labels), max_size=4))
    run = measure_run()
    snapshots: list[dict[str, Any]] = []
    while delivered:
        size = data.draw(st.integers(1, len(delivered)))
        at_ms = FIRST_MS + data.draw(st.integers(-1, 2)) * WINDOW_MS
        snapshots += feed(run, *delivered[:size], at_ms=at_ms)
        delivered = delivered[size:]
    assert cohorts(snapshots) == expected


def test_the_state_holds_the_sums_of_one_window_and_the_totals_stay_right() -> None:
    run = measure_run()
    snapshots, sizes = [], []
    for month in range(12):
        for version in range(5):
            label = labelled(f"{month}/{version}", version_max=10 * month + version, ended_at_us=month * 10**13)
            snapshots += feed(run, label, at_ms=FIRST_MS + month * WINDOW_MS)
        run.tick(FIRST_MS + month * WINDOW_MS)
        sizes.append(len(run.state.content))
    assert max(sizes[3:]) == sizes[3], "it does not grow once trajectories expire"
    # A revision of a trajectory whose sums are gone, and one more trajectory of its cohort.
    late = [labelled("11/4", 2, version_max=110), labelled("more", version_max=0)]
    snapshots += feed(run, *late, at_ms=FIRST_MS + 12 * WINDOW_MS)
    totals = cohorts(snapshots)
    assert {version: totals[version, "train", ""]["trajectories"] for version in (0, 110, 113)} == {
        0: 2,
        110: 2,
        113: 1,
    }
    assert (114, "train", "") not in totals


def test_a_window_is_full_with_so_many_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_window, "MOST_SUMS", 12)
    run = measure_run()
    snapshots = []
    for n in range(100):
        snapshots += feed(run, labelled(str(n), version_max=n), at_ms=FIRST_MS)
        assert sum(key[:1] == b"W" for key in run.state.content) <= 12 + 3
    snapshots += feed(run, *(labelled(str(n), 2, version_max=0) for n in range(100)), at_ms=FIRST_MS)
    totals = cohorts(snapshots)
    assert totals.keys() == {(0, "train", ""), (0, "train", "get")}
    assert totals[0, "train", ""]["trajectories"] == 100


def test_the_statistics_of_components_are_summed_over_windows() -> None:
    def sums(*at_ms: int) -> dict[Any, Any]:
        run, newest = measure_run(), {}
        labels = [labelled("a", group_id="g"), labelled("b", group_id="g"), labelled("a", 2, group_id="g", reward=0.7)]
        for label, at in zip(labels, at_ms, strict=True):
            for topic, key, event in run.feed([run.record("labeled-trajectories", label, at_ms=at)]):
                if topic == COMPONENT_STATS:
                    newest[key] = from_records(event["components"])
        return merge_sums(newest.values())

    whole = sums(FIRST_MS, FIRST_MS, FIRST_MS)
    assert {series.kind: moments.trajectories for series, moments in whole.items()} == {"reward": 2, "success": 2}
    parts = sums(FIRST_MS - 1, FIRST_MS, FIRST_MS + WINDOW_MS)
    for series, moments in whole.items():
        assert astuple(parts[series]) == pytest.approx(astuple(moments))


def test_trajectories_and_groups_expire_and_sums_remain() -> None:
    kinds_of_entries = ("trajectory", "group")
    added = [state_added(kind) for kind in kinds_of_entries]
    removed = [state_removed(kind, "age") for kind in kinds_of_entries]
    run = measure_run()
    at_ms = 1_760_000_100_000
    first = [labelled(name, group_id="g") for name in ("a", "b")]
    run.feed([run.record("labeled-trajectories", label, at_ms=at_ms) for label in first])
    revised = run.record(
        "labeled-trajectories", labelled("b", 2, group_id="g", success=False), at_ms=at_ms + 20 * DAY_MS
    )
    [*_, before] = [e for t, _, e in run.feed([revised]) if t == TRAJECTORY_STATS and e["scope"] == "cohort"]
    run.tick(at_ms + 38 * DAY_MS)
    kinds = [key[:1] for key in run.state.content]
    assert (kinds.count(b"t"), kinds.count(b"g")) == (1, 1)
    run.tick(at_ms + 58 * DAY_MS)
    assert {key[:1] for key in run.state.content} == {b"c", b"p", b"w"}
    assert [state_added(kind) - before for kind, before in zip(kinds_of_entries, added, strict=True)] == [2, 1]
    assert [state_removed(kind, "age") - before for kind, before in zip(kinds_of_entries, removed, strict=True)] == [
        2,
        1,
    ]
    [*_, after] = [e for e in feed(run, labelled("c")) if e["scope"] == "cohort"]
    assert after["trajectories"] == before["trajectories"] + 1


def test_the_oldest_trajectories_and_groups_make_room_for_new_ones() -> None:
    kinds = ("trajectory", "group")
    removed = [state_removed(kind, "cap") for kind in kinds]
    run, at_ms = measure_run(max_trajectories=2), 1_760_000_100_000
    for number, name in enumerate("abcd"):
        feed(run, labelled(name, group_id=name), at_ms=at_ms + number * DAY_MS)
    run.tick(at_ms)
    assert not run.fold.due(at_ms)
    assert {key[1:] for key in run.state.content if key.startswith(b"t")} == {
        trajectory_name("default", name) for name in "cd"
    }
    assert [state_removed(kind, "cap") - before for kind, before in zip(kinds, removed, strict=True)] == [2, 2]
