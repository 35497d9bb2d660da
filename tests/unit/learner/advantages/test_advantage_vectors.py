"""Check advantage rules against published and hand-computed vectors."""

import math
from dataclasses import replace

import pytest
from credit_cases import OUTCOMES, advantages, flat, four_attempts

from stepstream.learner.advantages import (
    DrGrpo,
    GiGpo,
    GroupStepGae,
    Grpo,
    Hcapo,
    Hgpo,
    PpoGae,
    ReinforcePlusPlus,
    Rloo,
    Rule,
    Salt,
    Shadow,
    Step,
    StepGae,
    Stratified,
    Trajectory,
    TreeGrpo,
    VTrace,
)
from stepstream.learner.advantages.arithmetic import returns, standardised

HALF_A_DIGIT = 6e-7
"""The vectors have six places; one of them is cut off instead of rounded."""


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Grpo(), (1.305580, -0.783348, 0.261116, -0.783348)),
        (Rloo(), (0.833333, -0.500000, 0.166667, -0.500000)),
        (DrGrpo(), (0.625000, -0.375000, 0.125000, -0.375000)),
        (Stratified(1.0), (0.707106, -0.707106, 0.707105, -0.707105)),
        (Stratified(0.8), (0.826801, -0.722354, 0.617907, -0.722353)),
        (TreeGrpo(), (2.012685, -1.490454, 0.968221, -1.490453)),
    ],
)
def test_rules_of_outcomes(rule: Rule, expected: tuple[float, ...]) -> None:
    result = advantages(rule, four_attempts(tool_calls=(1, 1, 2, 2), branch=(("x", 0), ("x", 0), ("y", 0), ("y", 0))))
    for steps, advantage in zip(result, expected, strict=True):
        assert steps == pytest.approx([advantage] * len(steps), abs=HALF_A_DIGIT)


def test_grpo_with_n_in_place_of_n_minus_1() -> None:
    expected = (1.507553, -0.904532, 0.301511, -0.904532)
    assert standardised(OUTCOMES, ddof=0) == pytest.approx(expected, abs=2e-6)  # the vector leaves ε out


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            GiGpo(),
            (
                (2.629795, 2.305578),
                (-1.556899, -1.783346),
                (0.484004, 0.968221, 0.261116),
                (-1.556899, -1.490452, -0.783348),
            ),
        ),
        (
            GiGpo(scale="none"),
            (
                (1.224687, 1.125000),
                (-0.725313, -0.875000),
                (0.225938, 0.362500, 0.125000),
                (-0.725313, -0.612500, -0.375000),
            ),
        ),
        (
            Hgpo(history=1),
            (
                (1.529071, 1.074913),
                (-0.893220, -1.074913),
                (0.257368, 0.999996, 0.000000),
                (-0.893220, -0.999996, 0.000000),
            ),
        ),
        (
            Hgpo(history=1, as_released=True),
            (
                (1.529071, 1.089896),
                (-0.893220, -1.089896),
                (0.257368, 0.999996, 0.000000),
                (-0.893220, -0.999996, 0.000000),
            ),
        ),
        (
            Salt(),
            (
                (0.261116, 0.783348),
                (0.261116, -0.783348),
                (-0.261116, 0.261116, 0.783348),
                (-0.261116, -0.783348, -0.783348),
            ),
        ),
        (
            GroupStepGae(),
            (
                (0.575937, 0.500000),
                (-0.326562, -0.500000),
                (0.089656, 0.237500, 0.000000),
                (-0.339031, -0.237500, 0.000000),
            ),
        ),
    ],
)
def test_rules_of_steps(rule: Rule, expected: tuple[tuple[float, ...], ...]) -> None:
    for steps, wanted in zip(advantages(rule, four_attempts()), expected, strict=True):
        assert steps == pytest.approx(wanted, abs=HALF_A_DIGIT)


def test_reinforce_plus_plus() -> None:
    result = advantages(ReinforcePlusPlus(), four_attempts())  # one token a step: 2, 2, 3 and 3 tokens
    for steps, wanted in zip(result, (1.579064, -0.850265, 0.364399, -0.850265), strict=True):
        assert steps == pytest.approx([wanted] * len(steps), abs=HALF_A_DIGIT)


def test_hindsight_ratios_and_values() -> None:
    third = four_attempts()[2]
    steps = tuple(replace(step, hindsight=h) for step, h in zip(third.steps, (0.8, 0.9, 1.0), strict=True))
    scored = replace(third, steps=steps)
    assert Hcapo().ratios(scored) == pytest.approx((0.888889, 1.0, 1.111111), abs=HALF_A_DIGIT)
    assert Hcapo().values(scored) == pytest.approx((0.401111, 0.475000, 0.555556), abs=HALF_A_DIGIT)


def off_policy() -> Trajectory:
    """r = (0, 0, 1), V = (.5, .6, .4), q = (.5, 2, .8)."""
    rows = zip((0.0, 0.0, 1.0), (0.5, 0.6, 0.4), (0.5, 2.0, 0.8), strict=True)
    steps = [
        Step(reward=reward, value=value, token_values=(value,), log_ratio=math.log(ratio))
        for reward, value, ratio in rows
    ]
    return Trajectory(tuple(steps), 1.0)


@pytest.mark.parametrize("rule", [StepGae(trace=0.95, whiten=False), PpoGae(trace=0.95, whiten=False)])
def test_gae_with_a_critic(rule: Rule) -> None:
    credit = rule([[off_policy()]]).groups[0][0]
    assert credit.steps == pytest.approx((0.451500, 0.370000, 0.600000), abs=HALF_A_DIGIT)
    assert credit.targets == pytest.approx((0.951500, 0.970000, 1.000000), abs=HALF_A_DIGIT)


def test_vtrace() -> None:
    credit = VTrace()([[off_policy()]]).groups[0][0]
    assert credit.targets == pytest.approx((0.690000, 0.880000, 0.880000), abs=HALF_A_DIGIT)
    assert credit.steps == pytest.approx((0.190000, 0.280000, 0.480000), abs=HALF_A_DIGIT)


def test_shadow_without_contradictions_is_the_step_gae_vector() -> None:
    assert flat(advantages(Shadow(), four_attempts())) == flat(advantages(GroupStepGae(), four_attempts()))


def test_potential_differences_pay_nothing_in_sum() -> None:
    potential = (0.2, 0.5, 0.4, 0.0)
    shaping = [0.95 * potential[t + 1] - potential[t] for t in range(3)]
    assert returns(shaping, 0.95)[0] == pytest.approx(-0.200000, abs=HALF_A_DIGIT)
