"""Check that reward potentials do not move the optimum: by their discount, and where a limit cut the trajectory."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import LIMITS, labelled

from stepstream.config import LearnerSettings
from stepstream.jobs.rewards.terms import shaping_rewards
from stepstream.learner.advantages import PpoGae, Rule, Step, StepGae, Trajectory, VTrace
from stepstream.learner.advantages.from_config import rule_of
from stepstream.learner.data.attempt import attempt_of
from stepstream.learner.data.reward_shaping import Discounting, apply_shaping, discounting_of
from stepstream.topics.events import LabeledTrajectory, new_labeled_step, new_reward_component

ADVANTAGES = get_args(LearnerSettings.model_fields["advantage"].annotation)
WHOLE = {"rloo", "grpo", "dr_grpo", "reinforce_pp", "reinforce_pp_baseline", "stratified", "salt", "tree_grpo"}
CRITICS = {"ppo_gae", "step_ppo", "vtrace"}
NUMBERS = st.floats(-2, 2)
PHI = {"s0": 0.5, "a": -0.25, "b": 1.0, "c": 0.75}
PATHS = (("s0", "a", "b"), ("s0", "b"), ("s0", "c", "a", "b"), ("s0", "a"))
OUTCOMES = (1.0, 0.0, 0.5, 0.25)


def shaped(rewards: list[float], potentials: list[float], gamma: float | None, **fields: Any) -> LabeledTrajectory:
    """Return a label with these rewards by step plus the differences of the potentials."""
    paid = shaping_rewards(potentials, 1.0 if gamma is None else gamma)
    steps = [
        new_labeled_step(
            step_index=index,
            event_id=f"s{index}",
            reward=reward + extra,
            return_to_go=0.0,
            components=[new_reward_component(name="phi", value=extra, weight=1.0, source="prm", kind="shaping")],
        )
        for index, (reward, extra) in enumerate(zip(rewards, paid, strict=True))
    ]
    total = sum(rewards) + sum(paid)
    return labelled("g", 0, total, versions=(0,) * len(rewards), steps=steps, gamma=gamma, **fields)


def group(gamma: float, *, with_potentials: bool) -> list[Trajectory]:
    """Return attempts from one state, rewarded at their ends."""
    attempts = []
    for path, outcome in zip(PATHS, OUTCOMES, strict=True):
        extra = shaping_rewards([PHI[state] for state in path], gamma) if with_potentials else [0.0] * len(path)
        rewards = [more + outcome * (index == len(path) - 1) for index, more in enumerate(extra)]
        steps = tuple(
            Step(reward, observation=state, action=state) for reward, state in zip(rewards, path, strict=True)
        )
        attempts.append(Trajectory(steps, sum(rewards), final_observation=("end", outcome)))
    return attempts


def advantages(rule: Rule, attempts: list[Trajectory]) -> list[float]:
    [credits] = rule([attempts]).groups
    return [advantage for credit in credits for advantage in credit.steps]


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_every_rule_has_its_discounts(advantage: str) -> None:
    config: dict[str, Any] = {"advantage": advantage, "credit_discount": 0.9, "loss_weight": "none"}
    discounting = discounting_of(LearnerSettings(preset="tiny", **config))
    expected = {1.0} if advantage in WHOLE | {"ppo_gae"} else {0.9, 1.0} if advantage in {"gigpo", "hcapo"} else {0.9}
    assert discounting.discounts == expected
    assert discounting.bootstraps == (advantage in CRITICS | {"step_gae", "shadow"})


def test_an_objective_without_advantages_sums_whole_rewards_or_nothing() -> None:
    dpo = LearnerSettings(preset="tiny", objective="dpo", advantage="step_ppo", kl_weight=0.0)
    assert discounting_of(dpo) == Discounting(frozenset({1.0}))
    assert [discounting_of(LearnerSettings(preset="tiny", objective=one)) for one in ("kto", "sft")] == [
        Discounting(),
        Discounting(),
    ]


@pytest.mark.parametrize(
    "advantage", sorted(set(ADVANTAGES) - CRITICS - {"reinforce_pp", "reinforce_pp_baseline", "hcapo"})
)
@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_only_shaping_of_another_discount_changes_advantages(advantage: str, discount: float) -> None:
    """If V̂ and baselines come from the group, -Φ(s) is in both and cancels out."""
    config = LearnerSettings(preset="tiny", advantage=advantage, credit_discount=discount)
    rule, discounting = rule_of(config), discounting_of(config)
    for gamma in (1.0, 0.9, 0.5):
        fits = apply_shaping(shaped([0.0, 1.0], [0.5, 0.5], gamma), discounting) is not None
        assert fits == (discounting.discounts == {gamma})
        plain = advantages(rule, group(gamma, with_potentials=False))
        same = advantages(rule, group(gamma, with_potentials=True)) == pytest.approx(plain, abs=1e-9)
        assert same == fits


def test_a_label_of_another_discount_is_excluded() -> None:
    record = shaped([0.0, 1.0], [0.5, 0.5], 0.95)
    limits = replace(LIMITS, discounting=Discounting(frozenset({1.0})))
    assert attempt_of(record, (0, 0), limits).untrainable == "shaping_discount"
    assert attempt_of(record, (0, 0), LIMITS).untrainable == ""
    assert attempt_of({**record, "gamma": 1.0}, (0, 0), limits).untrainable == ""
    assert attempt_of({**record, "gamma": None}, (0, 0), limits).untrainable == ""  # a label without the field
    for kind, weight in (("shadow", 0.0), ("shaping", 0.0), ("raw", 1.0)):
        record["steps"][1]["components"][0] |= {"kind": kind, "weight": weight}
        record["steps"][0]["components"] = []
        assert attempt_of(record, (0, 0), limits).untrainable == ""
    # Other reasons come first.
    assert attempt_of({**record, "split": "eval"}, (0, 0), limits).untrainable == "split"


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5), NUMBERS, st.floats(0, 1), st.floats(0, 1)
)
def test_potentials_do_not_change_a_critic_s_advantages_in_a_truncated_trajectory(
    steps: list[tuple[float, float, float]], after: float, gamma: float, trace: float
) -> None:
    """With V - Φ in place of V, and the last potential restored after the cut."""
    rewards, potentials, values = (list(column) for column in zip(*steps, strict=True))
    discounting = Discounting(frozenset({gamma}), bootstraps=True)
    record = apply_shaping(shaped(rewards, potentials, gamma, end="truncated"), discounting)
    assert record is not None
    paid = [step["reward"] for step in record["steps"]]

    def attempt(rewards: list[float], values: list[float], after: float) -> list[Trajectory]:
        of = zip(rewards, values, strict=True)
        made = [Step(reward, value=value, token_values=(value,), log_ratio=-0.5) for reward, value in of]
        return [Trajectory(tuple(made), 0.0, truncated=True, final_value=after)]

    less = [value - potential for value, potential in zip(values, potentials, strict=True)]
    rules = [StepGae(gamma, trace, whiten=False), VTrace(gamma), PpoGae(gamma, trace, whiten=False)]
    for rule in rules:
        with_potentials = advantages(rule, attempt(paid, less, after - potentials[-1]))
        assert with_potentials == pytest.approx(advantages(rule, attempt(rewards, values, after)), abs=1e-9)


def test_the_last_potential_is_restored_only_if_truncated_and_bootstrapped() -> None:
    bootstraps = Discounting(frozenset({0.9}), bootstraps=True)
    record = shaped([0.0, 1.0], [0.5, 0.25], 0.9, end="truncated")
    credit = attempt_of(record, (0, 0), replace(LIMITS, discounting=bootstraps)).credit
    assert [step.reward for step in credit.steps] == pytest.approx([0.9 * 0.25 - 0.5, 1.0 + 0.9 * 0.25 - 0.25])
    assert credit.outcome == record["reward"]
    for other in (record | {"end": "terminated"}, record | {"gamma": None}, record | {"steps": []}):
        assert apply_shaping(other, bootstraps) is other
    assert apply_shaping(record, Discounting(frozenset({0.9}))) is record
