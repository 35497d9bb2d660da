"""Check laws that hold for any group, and rules that reduce to others in special cases."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from credit_cases import advantages, bandits, flat, four_attempts
from hypothesis import given
from hypothesis import strategies as st

from stepstream.learner.advantages import (
    DrGrpo,
    GiGpo,
    Group,
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
from stepstream.learner.advantages.arithmetic import returns
from stepstream.learner.advantages.base import GroupRule

GROUP_RULES: list[Rule] = [
    Rloo(),
    Grpo(),
    DrGrpo(),
    GiGpo(),
    GiGpo(scale="none"),
    Hgpo(),
    Hgpo(as_released=True),
    Stratified(),
    Salt(),
    Salt(Rloo()),
    TreeGrpo(),
    GroupStepGae(),
    Shadow(),
    Hcapo(),
    ReinforcePlusPlus(baseline=True),
]
BATCH_RULES: list[Rule] = [ReinforcePlusPlus(), PpoGae(), StepGae(), VTrace()]

rewards = st.integers(-8, 8).map(lambda n: n / 8)  # exact in binary, so that shifts by them are too


@st.composite
def attempts(draw: st.DrawFn) -> Trajectory:
    """An attempt through a few states, with everything that any rule needs."""
    length = draw(st.integers(1, 4))
    steps = tuple(
        Step(
            reward=draw(rewards),
            tokens=(tokens := draw(st.integers(1, 2))),
            observation=draw(st.sampled_from(["s0", "s1", "s2", None])),
            action=draw(st.sampled_from("ab")),
            value=draw(rewards),
            hindsight=draw(st.floats(0.1, 1.0)),
            log_ratio=draw(st.floats(-1.0, 1.0)),
            token_values=(draw(rewards),) * tokens,
        )
        for _ in range(length)
    )
    return Trajectory(
        steps,
        math.fsum(step.reward for step in steps),
        truncated=draw(st.booleans()),
        final_observation=draw(st.sampled_from(["s0", "e"])),
        final_value=draw(rewards),
        succeeded=draw(st.booleans()),
        tool_calls=draw(st.integers(0, 1)),
        branch=draw(st.none() | st.tuples(st.sampled_from(["0", "1", "elsewhere"]), st.integers(0, 4))),
    )


groups = st.lists(attempts(), min_size=2, max_size=5).map(
    lambda group: [replace(trajectory, name=str(i)) for i, trajectory in enumerate(group)]
)
outcomes = st.lists(rewards, min_size=2, max_size=8)
any_rule = st.sampled_from(GROUP_RULES + BATCH_RULES)


def close(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]], tolerance: float = 1e-9) -> None:
    assert flat(left) == pytest.approx(flat(right), abs=tolerance, rel=tolerance)


@given(groups, any_rule, st.randoms(use_true_random=False))
def test_the_order_of_attempts_changes_nothing(group: Group, rule: Rule, rng: random.Random) -> None:
    order = list(range(len(group)))
    rng.shuffle(order)
    straight = advantages(rule, group)
    close(advantages(rule, [group[i] for i in order]), [straight[i] for i in order])


@given(groups, any_rule)
def test_every_step_gets_one_finite_number(group: Group, rule: Rule) -> None:
    credits = rule([group]).groups[0]
    for credit, trajectory in zip(credits, group, strict=True):
        assert len(credit.steps) == len(trajectory.steps)
        assert all(math.isfinite(advantage) for advantage in credit.steps)
        if credit.tokens is not None:
            assert [len(step) for step in credit.tokens] == [step.tokens for step in trajectory.steps]


@given(st.lists(groups, min_size=1, max_size=3), st.sampled_from(GROUP_RULES[:-1]))
def test_groups_do_not_see_each_other(batch: list[Group], rule: Rule) -> None:
    together = rule(batch)
    assert together.counts["groups"] == len(batch)
    for group, credits in zip(batch, together.groups, strict=True):
        assert [list(credit.steps) for credit in credits] == advantages(rule, group)


@pytest.mark.parametrize("rule", GROUP_RULES)
@pytest.mark.parametrize(
    ("group", "reason"), [([], "too_small"), (bandits([1.0]), "too_small"), (bandits([0.3] * 3), "no_variance")]
)
def test_groups_without_difference_are_skipped_and_counted(rule: Rule, group: Group, reason: str) -> None:
    result = rule([group, bandits([0.0, 1.0])])
    assert [list(credit.steps) for credit in result.groups[0]] == [[0.0]] * len(group)
    assert result.counts[reason] == 1
    assert result.counts["groups"] == 2


@given(groups, st.booleans(), st.sampled_from([rule for rule in GROUP_RULES if isinstance(rule, GroupRule)]))
def test_a_group_has_nothing_to_learn_if_and_only_if_all_advantages_are_0(
    group: Group, alike: bool, rule: GroupRule
) -> None:
    if alike:
        group = [replace(trajectory, outcome=0.5) for trajectory in group]
    computed = rule.group(group, Counter())  # before the rule skips any group
    if isinstance(rule, Hcapo):  # the scores come later: without a difference no score helps
        assert not rule.nothing_to_learn(group) or flat(computed) == pytest.approx([0.0] * len(flat(computed)))
    else:
        assert bool(rule.nothing_to_learn(group)) == (max(map(abs, flat(computed))) < 1e-9)
    assert any(flat(advantages(rule, group))) == (max(map(abs, flat(computed))) >= 1e-9)


@given(groups, st.sampled_from(GROUP_RULES))
def test_rules_that_compare_outcomes_learn_nothing_from_equal_ones(group: Group, rule: Rule) -> None:
    if rule.compares_outcomes:
        assert rule.nothing_to_learn([replace(trajectory, outcome=0.5) for trajectory in group]) == "no_variance"


STEP_RULES = [GiGpo(), GiGpo(scale="none"), Hgpo(), GroupStepGae(), Shadow()]


@pytest.mark.parametrize("rule", STEP_RULES)
def test_steps_of_equal_outcome_and_different_returns_are_compared(rule: Rule) -> None:
    early = Trajectory((Step(1.0, observation="s", action="a"), Step(0.0, observation="x")), 1.0)
    late = Trajectory((Step(0.0, observation="s", action="b"), Step(1.0, observation="y")), 1.0)
    assert not rule.compares_outcomes
    assert rule.nothing_to_learn([early, late]) == ""
    (first, _), (second, _) = advantages(rule, [early, late])
    assert first > 0.0 > second
    assert rule.nothing_to_learn([early, early]) == "no_variance"


@pytest.mark.parametrize("rule", STEP_RULES)
def test_advantages_of_untrained_steps_alone_teach_nothing(rule: Rule) -> None:
    steps = (Step(1.0, observation="s", action="a", tokens=0), Step(0.0, observation="x"))
    other = (Step(0.0, observation="s", action="b", tokens=0), Step(1.0, observation="y"))
    assert rule.nothing_to_learn([Trajectory(steps, 1.0), Trajectory(other, 1.0)]) == "no_variance"


@pytest.mark.parametrize("rule", [ReinforcePlusPlus(), StepGae(), PpoGae()])
def test_a_batch_without_variance_is_counted(rule: Rule) -> None:
    steps = (Step(reward=1.0, value=0.5, token_values=(0.5,)),)
    result = rule([[Trajectory(steps, 1.0)] * 3])
    assert flat([credit.steps for credit in result.groups[0]]) == [0.0] * 3
    assert result.counts["flat_batch"] == 1


@given(outcomes, st.sampled_from([Rloo(), Grpo(), DrGrpo(), Stratified(), TreeGrpo(), Salt()]))
def test_outcome_advantages_sum_to_zero(outcomes: list[float], rule: Rule) -> None:
    assert sum(flat(advantages(rule, bandits(outcomes)))) == pytest.approx(0.0, abs=1e-9)


@given(outcomes, st.sampled_from([Rloo(), Grpo(), DrGrpo(), Stratified(), TreeGrpo()]))
def test_a_better_outcome_never_gets_less(outcomes: list[float], rule: Rule) -> None:
    result = flat(advantages(rule, bandits(outcomes)))
    ranked = [result[i] for i in sorted(range(len(result)), key=outcomes.__getitem__)]
    assert all(low <= high + 1e-9 for low, high in itertools.pairwise(ranked))


@given(groups)
def test_gigpo_steps_with_the_same_anchor_sum_to_zero(group: Group) -> None:
    grpo, gigpo = advantages(Grpo(), group), advantages(GiGpo(), group)
    local = [[b - a for a, b in zip(x, y, strict=True)] for x, y in zip(grpo, gigpo, strict=True)]
    for state in ("s0", "s1", "s2"):
        pairs = [pair for i, t in enumerate(group) for pair in zip(local[i], t.steps, strict=True)]
        assert sum(a for a, step in pairs if step.observation == state) == pytest.approx(0.0, abs=1e-6)


def paid_at_the_end(group: Group, change: Callable[[float], float]) -> list[Trajectory]:
    """The group with its outcomes changed."""
    return [
        replace(
            trajectory,
            outcome=change(trajectory.outcome),
            steps=(*trajectory.steps[:-1], replace(trajectory.steps[-1], reward=change(trajectory.steps[-1].reward))),
        )
        for trajectory in group
    ]


@pytest.mark.parametrize("rule", [Rloo(), Grpo(), DrGrpo(), Stratified(), Salt(), TreeGrpo(), ReinforcePlusPlus()])
@given(shift=rewards)
def test_a_reward_that_every_attempt_gets_changes_nothing(rule: Rule, shift: float) -> None:
    group = four_attempts(tool_calls=(1, 1, 2, 2))
    close(advantages(rule, paid_at_the_end(group, lambda r: r + shift)), advantages(rule, group))


@pytest.mark.parametrize(
    ("rule", "grows"),
    [
        (Rloo(), True),
        (DrGrpo(), True),
        (GiGpo(scale="none"), True),
        (GroupStepGae(), True),
        (Shadow(), True),
        (Grpo(), False),
        (GiGpo(), False),
        (Hgpo(), False),
        (Stratified(), False),
        (Salt(), False),
        (TreeGrpo(), False),
        (ReinforcePlusPlus(), False),
    ],
)
def test_scaled_rewards_scale_advantages_only_without_standardisation(rule: Rule, grows: bool) -> None:
    group = four_attempts()
    tenfold = advantages(rule, paid_at_the_end(group, lambda r: 10 * r))
    expected = [[a * (10 if grows else 1) for a in steps] for steps in advantages(rule, group)]
    close(tenfold, expected, 1e-9 if grows else 2e-4)  # ε weighs less beside a larger deviation


@given(groups)
def test_gigpo_without_repeated_anchors_is_grpo(group: Group) -> None:
    alone = [
        replace(t, steps=tuple(replace(s, observation=(i, n)) for n, s in enumerate(t.steps)))
        for i, t in enumerate(group)
    ]
    result = GiGpo()([alone])
    assert [list(credit.steps) for credit in result.groups[0]] == advantages(Grpo(), alone)
    if not result.counts["no_variance"]:
        assert result.counts["unmatched_steps"] == sum(len(t.steps) for t in alone)


@given(groups)
def test_gigpo_of_no_step_weight_is_grpo(group: Group) -> None:
    assert advantages(GiGpo(step_weight=0.0), group) == advantages(Grpo(), group)


@given(outcomes)
def test_one_stratum_one_tree_and_no_shared_edge_are_grpo(outcomes: list[float]) -> None:
    group = bandits(outcomes)
    close(advantages(Stratified(), group), advantages(Grpo(), group))
    assert advantages(Salt(), group) == advantages(Grpo(), group)
    assert advantages(TreeGrpo(), group) == advantages(Grpo(), group)  # every attempt a tree of one leaf
    one_tree = [replace(trajectory, branch=("x", 0)) for trajectory in group]
    close(advantages(TreeGrpo(), one_tree), [[2 * a for a in steps] for steps in advantages(Grpo(), group)])


@given(outcomes)
def test_step_gae_of_one_step_is_the_difference_from_the_mean(outcomes: list[float]) -> None:
    group = bandits(outcomes)
    close(advantages(GroupStepGae(1.0, 1.0), group), advantages(DrGrpo(), group))
    close(advantages(Shadow(1.0, 1.0), group), advantages(DrGrpo(), group))


@given(groups)
def test_hgpo_without_history_has_one_level(group: Group) -> None:
    first = GiGpo(step_weight=1.0)
    hgpo, gigpo, grpo = (advantages(rule, group) for rule in (Hgpo(history=0), first, Grpo()))
    for i, trajectory in enumerate(group):
        for t in range(len(trajectory.steps)):  # same groups and signs; the deviation divides by another n
            local = gigpo[i][t] - grpo[i][t]
            assert abs(hgpo[i][t]) >= abs(local) - 1e-6
            assert hgpo[i][t] * local >= -1e-9


@given(attempts())
def test_vtrace_of_the_policy_itself_is_gae_with_full_trace(attempt: Trajectory) -> None:
    same = replace(attempt, steps=tuple(replace(step, log_ratio=0.0) for step in attempt.steps))
    vtrace, gae = (rule([[same]]).groups[0][0] for rule in (VTrace(0.9), StepGae(0.9, 1.0, whiten=False)))
    close([vtrace.steps, vtrace.targets], [gae.steps, gae.targets])


@given(attempts())
def test_a_full_trace_is_the_return_and_none_is_the_next_value(attempt: Trajectory) -> None:
    values = [step.value or 0.0 for step in attempt.steps]
    paid = [step.reward for step in attempt.steps]
    after = attempt.final_value if attempt.truncated and attempt.final_value is not None else 0.0
    full, none = (rule([[attempt]]).groups[0][0].steps for rule in (StepGae(0.9, 1.0, False), StepGae(0.9, 0.0, False)))
    close([full], [[g - v for g, v in zip(returns(paid, 0.9, after), values, strict=True)]])
    following = [*values[1:], after]
    close([none], [[r + 0.9 * n - v for r, n, v in zip(paid, following, values, strict=True)]])


@given(groups)
def test_local_gae_with_a_full_trace_is_the_difference_from_the_state_s_mean_return(group: Group) -> None:
    ended = [replace(trajectory, truncated=False) for trajectory in group]
    result = GroupStepGae(0.9, 1.0)([ended])
    gains = [returns([step.reward for step in t.steps], 0.9) for t in ended]
    met = [(s.observation, i, n) for i, t in enumerate(ended) for n, s in enumerate(t.steps) if s.observation]
    for state, i, n in met if not result.counts["no_variance"] else []:
        visits = [gains[j][m] for other, j, m in met if other == state]
        assert result.groups[0][i].steps[n] == pytest.approx(gains[i][n] - sum(visits) / len(visits), abs=1e-9)


@given(attempts())
def test_token_gae_of_one_token_a_step_is_step_gae(attempt: Trajectory) -> None:
    steps = [replace(s, tokens=1, token_values=s.token_values[:1], value=s.token_values[0]) for s in attempt.steps]
    one = replace(attempt, steps=tuple(steps))
    by_token, by_step = (rule([[one]]).groups[0][0] for rule in (PpoGae(0.9, 0.8, False), StepGae(0.9, 0.8, False)))
    assert (by_token.steps, by_token.targets) == (by_step.steps, by_step.targets)


@given(st.lists(attempts(), min_size=2, max_size=4), st.sampled_from([ReinforcePlusPlus(), PpoGae()]))
def test_whitened_tokens_have_mean_zero_and_variance_one(group: Group, rule: Rule) -> None:
    result = rule([group])
    values = [a for credit in result.groups[0] for step in credit.tokens or () for a in step]
    assert math.fsum(values) == pytest.approx(0.0, abs=1e-6)
    if not result.counts["flat_batch"]:
        variance = math.fsum(a * a for a in values) / (len(values) - 1)
        assert variance <= 1.0 + 1e-9  # less only where ε is not small beside it
        assert variance > 0.99 or isinstance(rule, PpoGae)


@given(st.lists(rewards, min_size=2, max_size=5), st.lists(rewards, min_size=2, max_size=5), rewards)
def test_potential_shaping_moves_every_return_from_a_state_alike(
    one: list[float], other: list[float], potential: float
) -> None:
    def shaped(paid: list[float]) -> float:
        phi = [potential, *(math.sin(n) for n in range(1, len(paid))), 0.0]
        return returns([r + 0.95 * phi[t + 1] - phi[t] for t, r in enumerate(paid)], 0.95)[0]

    before = returns(one, 0.95)[0] - returns(other, 0.95)[0]
    assert shaped(one) - shaped(other) == pytest.approx(before, abs=1e-9)
