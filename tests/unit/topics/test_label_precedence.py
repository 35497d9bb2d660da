"""Every reader chooses the same label of a trajectory, in any order. (ClickHouse: integration/test_migrate.py)"""

from typing import Any

from buffers import SIZE, buffer, log_of
from fold_harness import MemoryChanges
from hypothesis import given, settings
from hypothesis import strategies as st
from label_runs import Run
from labelled_records import group_of, labelled
from measure_runs import measure_run

from stepstream.topics.ids import trajectory_name
from stepstream.topics.label_precedence import label_precedence

IDS = [f"{digit}0000000-0000-5000-8000-000000000000" for digit in "08f"]


def of(name: str, revision: int, event_id: str, reward: float) -> Any:
    label = labelled("g", 0, reward, revision=revision, event_id=event_id)
    return label | {"trajectory_id": name}


def chosen_by_measure(labels: list[Any]) -> float:
    run = measure_run()
    snapshots = [run.feed([run.record("labeled-trajectories", label)]) for label in labels]
    whole = [e for batch in snapshots for t, _, e in batch if t == "trajectory-stats" and e["scope"] == "trajectory"]
    return float(whole[-1]["reward_sum"])


def chosen_by_learner(labels: list[Any]) -> float:
    others = group_of("g", SIZE)[1:]
    replay_buffer = buffer()
    for attempt in log_of(*labels, *others):
        replay_buffer.add(attempt, 0.0)
    [group] = replay_buffer.take(1) or [[]]
    return next(attempt.reward for attempt in group if attempt.trajectory_id == labels[0]["trajectory_id"])


def chosen_by_label(labels: list[Any]) -> tuple[int, str]:
    run = Run()
    changes = MemoryChanges(run.state)
    for label in labels:
        run.fold.restore_published(label, changes)
    run.state.write(changes)
    name = labels[0]["trajectory_id"]
    saved = run.fold._state.saved(trajectory_name("default", name), MemoryChanges(run.state))  # type: ignore[attr-defined]
    return saved.revision, saved.label_id


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2), st.sampled_from(IDS)), min_size=1, unique=True).flatmap(
        lambda chosen: st.tuples(st.permutations(chosen), st.lists(st.sampled_from(chosen), max_size=3))
    )
)
def test_all_readers_choose_the_label_of_greatest_precedence(
    drawn: tuple[list[tuple[int, str]], list[tuple[int, str]]],
) -> None:
    order = [*drawn[0], *drawn[1]]
    name = group_of("g", SIZE)[0]["trajectory_id"]
    # Exact in single precision; different for each label, and from the rewards of the group's other attempts.
    rewards = {label: number / 8 + 1 / 16 for number, label in enumerate(sorted(set(order)))}
    labels = [of(name, *label, rewards[label]) for label in order]
    revision, event_id = max(order, key=lambda label: label_precedence(*label))
    assert chosen_by_measure(labels) == rewards[revision, event_id]
    assert chosen_by_learner(labels) == rewards[revision, event_id]
    assert chosen_by_label(labels) == (revision, event_id)
