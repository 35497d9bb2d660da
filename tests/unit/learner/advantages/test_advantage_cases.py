"""Check single cases of the advantage rules: truncation, strata, hindsight terms, missing inputs, excluded tokens."""

import math
from dataclasses import replace
from typing import Literal

import pytest
from credit_cases import advantages, attempt_at, four_attempts

from stepstream.learner.advantages import (
    GroupStepGae,
    Grpo,
    Hcapo,
    MissingInput,
    PpoGae,
    Rule,
    Shadow,
    Step,
    StepGae,
    Stratified,
    Trajectory,
    VTrace,
)


def test_a_truncated_attempt_continues_with_its_final_value() -> None:
    ended = Trajectory((Step(value=0.5), Step(value=0.5)), 0.0, final_value=0.5)
    for rule, expected in ((StepGae(1.0, 1.0, False), (-0.5, 0.0)), (VTrace(), (-0.5, 0.0))):
        ready = replace(ended, steps=tuple(replace(step, log_ratio=0.0) for step in ended.steps))
        found = [rule([[replace(ready, truncated=cut)]]).groups[0][0].steps[0] for cut in (False, True)]
        assert tuple(found) == expected


def test_truncation_without_a_critic_is_not_a_failure() -> None:
    group = [attempt_at(1.0, ("s", "a"), ("s", "a")), attempt_at(0.0, ("s", "b"), ("s", "b"))]
    cut = [group[0], replace(group[1], truncated=True)]
    ended, gone_on = (advantages(GroupStepGae(1.0, 0.0), each)[1][-1] for each in (group, cut))
    assert ended == -0.5
    assert gone_on == 0.0


def test_shadow_separates_states_by_the_effect_of_one_action() -> None:
    group = [
        attempt_at(1.0, ("door", "open"), ("hall", "x"), end="e"),
        attempt_at(0.0, ("door", "open"), ("cell", "x"), end="e2"),
    ]
    assert advantages(GroupStepGae(1.0, 1.0), group)[0][0] == 0.5
    assert advantages(Shadow(1.0, 1.0), group)[0][0] == 0.0  # two doors: nobody to be compared with


@pytest.mark.parametrize("by", ["tools", "steps", "tokens"])
def test_strata_follow_the_configured_property(by: Literal["tools", "steps", "tokens"]) -> None:
    """One pair differs in the outcome within its stratum, for each of the three properties."""
    short, long = (("s", "a"),), (("s", "a"), ("t", "a"))
    few = [attempt_at(outcome, *short, tokens=3) for outcome in (1.0, 0.0)]  # 3 tokens, 1 step
    many = [attempt_at(0.5, *long, tokens=4) for _ in range(2)]  # 8 tokens, 2 steps
    group = [*few, *(replace(each, tool_calls=1) for each in many)]
    mixed = [replace(each, tool_calls=0) for each in group]
    found = [steps[0] for steps in advantages(Stratified(1.0, by), group)]
    assert found == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5), 0.0, 0.0], abs=2e-6)
    assert (advantages(Stratified(1.0, by), mixed) == advantages(Grpo(), group)) is (by == "tools")


def test_bands_of_tokens_double() -> None:
    lengths = (1, 2, 3, 4, 7, 8)
    group = [attempt_at(float(n % 2), ("s", "a"), tokens=length) for n, length in enumerate(lengths)]
    found = [bool(steps[0]) for steps in advantages(Stratified(1.0, "tokens"), group)]
    assert found == [False, True, True, True, True, False]  # 2 with 3, and 4 with 7


def test_a_success_has_no_negative_hindsight_terms() -> None:
    group = four_attempts(succeeded=(True, False, False, False))
    group = [replace(t, steps=tuple(replace(s, hindsight=0.5) for s in t.steps)) for t in group]
    grpo, result = advantages(Grpo(), group), advantages(Hcapo(), group)
    assert all(a >= grpo[0][0] for a in result[0])
    assert any(a < grpo[1][0] for a in result[1])
    assert result == advantages(Hcapo(critic=lambda t: [0.5] * len(t.steps)), four_attempts(succeeded=(1, 0, 0, 0)))


@pytest.mark.parametrize("rule", [StepGae(), PpoGae(), VTrace(), Hcapo()])
def test_a_missing_input_is_named(rule: Rule) -> None:
    with pytest.raises(MissingInput, match=r"value|hindsight"):
        rule([four_attempts()])


def test_an_untrained_step_passes_its_reward_and_credit_on() -> None:
    steps = (Step(value=0.5, log_ratio=0.0), Step(reward=0.25, tokens=0), Step(reward=1.0, value=0.5, log_ratio=0.0))
    for rule in (StepGae(0.5, 0.5, False), VTrace(0.5)):
        credit = rule([[Trajectory(steps, 1.25)]]).groups[0][0]
        carried = 0.25 if isinstance(rule, StepGae) else 1.0  # λ² of the last step's surprise, or all of it
        # V of the second state is 0.25 + γ·0.5
        assert credit.steps[2] == 0.5
        assert credit.steps[0] == 0.5 * 0.5 - 0.5 + 0.25 * carried * 0.5
        assert credit.targets[0] == 0.5 + credit.steps[0]
    with pytest.raises(MissingInput, match="step_ppo needs `value`"):
        StepGae()([[Trajectory((Step(tokens=1),), 1.0)]])


def test_vtrace_excludes_ratios_that_are_not_finite_and_rejects_swapped_caps() -> None:
    steps = (Step(value=0.5, log_ratio=math.nan), Step(reward=1.0, value=0.5, log_ratio=0.0))
    credit = VTrace()([[Trajectory(steps, 1.0)]]).groups[0][0]
    assert credit.steps == (0.0, 0.5)
    assert credit.targets == (0.5, 1.0)
    with pytest.raises(ValueError, match="rho_cap"):
        VTrace(rho_cap=1.0, trace_cap=2.0)
