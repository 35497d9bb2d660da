"""Statistics: totals with versions, equal for any order and repetition of labels."""

from typing import Any

from fold_harness import FoldRun
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_runs import measure_run

from stepstream.topics.catalogue import TRAJECTORY_STATS
from stepstream.topics.events import new_labeled_step, new_labeled_trajectory, new_tool_use
from stepstream.topics.ids import derived_id

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


def feed(run: FoldRun, *labels: Any) -> list[dict[str, Any]]:
    records = [run.record("labeled-trajectories", label) for label in labels]
    return [event for topic, _, event in run.feed(records) if topic == TRAJECTORY_STATS]


def cohorts(snapshots: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The newest snapshot of each cohort, by what tells cohorts apart, without those that stand at nothing."""
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for snapshot in snapshots:
        if snapshot["scope"] == "cohort":
            key = (snapshot["policy_version"], snapshot["split"], snapshot["tool"])
            assert key not in newest or snapshot["version"] > newest[key]["version"]
            newest[key] = snapshot
    sums = {key: {name: snapshot[name] for name in SUMS} for key, snapshot in newest.items()}
    return {key: values for key, values in sums.items() if any(values.values())}


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


def test_an_unknown_outcome_is_neither_success_nor_failure() -> None:
    snapshots = feed(measure_run(), labelled("a", success=None, end="open"))
    cohort = cohorts(snapshots)[2, "train", ""]
    assert (cohort["successes"], cohort["failures"], cohort["truncated"]) == (0, 0, 1)


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
        snapshots += feed(run, *delivered[:size])
        delivered = delivered[size:]
    assert cohorts(snapshots) == expected


def test_trajectories_and_groups_expire_and_sums_remain() -> None:
    run = measure_run()
    day_ms, at_ms = 86_400_000, 1_760_000_100_000
    first = [labelled(name, group_id="g") for name in ("a", "b")]
    run.feed([run.record("labeled-trajectories", label, at_ms=at_ms) for label in first])
    revised = run.record(
        "labeled-trajectories", labelled("b", 2, group_id="g", success=False), at_ms=at_ms + 20 * day_ms
    )
    [*_, before] = [e for t, _, e in run.feed([revised]) if t == TRAJECTORY_STATS and e["scope"] == "cohort"]
    run.tick(at_ms + 38 * day_ms)
    kinds = [key[:1] for key in run.state.content]
    assert (kinds.count(b"t"), kinds.count(b"g")) == (1, 1)
    run.tick(at_ms + 58 * day_ms)
    assert {key[:1] for key in run.state.content} == {b"c", b"p"}
    [*_, after] = [e for e in feed(run, labelled("c")) if e["scope"] == "cohort"]
    assert after["trajectories"] == before["trajectories"] + 1
