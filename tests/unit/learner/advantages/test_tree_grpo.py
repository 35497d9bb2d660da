"""Check Tree-GRPO on trees of attempts recorded by agents, through the labels of the label job."""

from typing import Any

import pytest
from buffers import buffer
from credit_cases import advantages
from fold_harness import FoldRun, MemoryState
from label_runs import label_settings
from stream_records import as_governed, make_ending, make_steps

from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.spec_lookup import FixedSpec
from stepstream.learner.advantages import Grpo, TreeGrpo
from stepstream.learner.data.attempt import attempt_of
from stepstream.learner.data.replay_buffer import ReplayBuffer
from stepstream.learner.data.sequences import Limits

LIMITS = Limits("demo", 1000, 512)


def labels(*attempts: tuple[str, int, float, tuple[str, int] | None]) -> list[Any]:
    """Return the attempts in the labels that the label job builds: name, steps, outcome and parent step."""
    state = MemoryState()
    run = FoldRun(JOB, None, state)  # type: ignore[arg-type]
    specs = FixedSpec(RewardSpec())
    run.fold = LabelFold(state, specs, run.codec, settings=label_settings())  # type: ignore[arg-type]
    records = []
    for name, count, outcome, branch in attempts:
        parent, after = branch or (None, None)
        steps = make_steps(name, count, group_id="g", parent_trajectory_id=parent, parent_step_index=after)
        records += [run.record("governed-steps", as_governed(step)) for step in steps]
        records.append(run.record("governed-feedback", as_governed(make_ending(name, count, outcome))))
    return [label for _, _, label in run.feed(records)]


def filled_buffer(*records: Any, **fields: Any) -> ReplayBuffer:
    replay_buffer = buffer(group_size=len(records), version=3, **fields)
    for offset, record in enumerate(records):
        replay_buffer.add(attempt_of(record, (0, offset), LIMITS), 0.0)
    return replay_buffer


FOREST = (
    ("a", 3, 1.0, None),
    ("b", 2, 0.0, ("a", 0)),
    ("c", 1, 1.0, ("b", 0)),
    ("d", 2, 0.0, None),
)


def credited(*records: Any) -> dict[str, list[float]]:
    """Tree-GRPO's advantages by attempt and step."""
    (group,) = filled_buffer(*records).take(1) or [[]]
    found = advantages(TreeGrpo(), [attempt.credit for attempt in group])
    return {attempt.trajectory_id: steps for attempt, steps in zip(group, found, strict=True)}


def test_attempts_that_continue_behind_a_step_are_branches_of_its_tree() -> None:
    made = labels(*FOREST)
    assert [label["reward"] for label in made] == [1.0, 0.0, 1.0, 0.0]
    found = credited(*made)
    # R = (1, 0, 1) in the tree of a, b and c, where A_intra = (.577, -1.155, .577); A_inter = ±.866.
    good, bad = 0.866025 + 0.577350, -0.866025 - 1.154701
    expected = {
        "a": [(good + bad + good) / 3, good, good],
        "b": [(bad + good) / 2, bad],
        "c": [good],
        "d": [-0.866025, -0.866025],
    }
    assert found == {name: pytest.approx(steps, abs=4e-6) for name, steps in expected.items()}


def test_a_late_outcome_reaches_only_the_steps_of_its_own_branch() -> None:
    found = credited(*labels(("a", 3, 0.0, None), ("b", 2, 1.0, ("a", 1))))
    assert found["a"][0] == found["a"][1] == pytest.approx(0.0)
    assert found["a"][2] < 0.0 < found["b"][0] == found["b"][1]


def test_without_branches_every_attempt_is_a_tree_of_its_own() -> None:
    made = labels(*((name, count, outcome, None) for name, count, outcome, _ in FOREST))
    credit = [attempt_of(label, (0, n), LIMITS).credit for n, label in enumerate(made)]
    assert advantages(TreeGrpo(), credit) == advantages(Grpo(), credit)


def test_branches_of_a_missing_attempt_are_compared_with_each_other() -> None:
    made = labels(*FOREST)
    made[0]["consent"] = "analyse"
    found = credited(*made)
    assert set(found) == {"b", "c", "d"}
    assert found["b"][0] == pytest.approx((found["b"][1] + found["c"][0]) / 2)
    assert found["c"][0] > -found["d"][0]  # ahead of b in their tree, and of all others


def test_cyclic_parents_and_missing_parent_steps_are_tolerated() -> None:
    found = credited(*labels(("a", 2, 1.0, ("b", 9)), ("b", 2, 0.0, ("a", 0))))
    assert all(abs(advantage) < 10 for steps in found.values() for advantage in steps)
