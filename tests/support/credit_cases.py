"""Build the group of four attempts that the tests of published advantage rules compare."""

from collections.abc import Sequence
from dataclasses import replace

from stepstream.learner.advantages import Group, Rule, Step, Trajectory

OUTCOMES = (1.0, 0.0, 0.5, 0.0)
LOSS_OF: dict[str, dict[str, str]] = {"vtrace": {"loss_weight": "none"}}
"""Loss settings that a rule requires, by the rule's name in the configuration."""

_PATHS = (
    (("s0", "a"), ("s1", "c"), "E1"),
    (("s0", "a"), ("s1", "d"), "E2"),
    (("s0", "b"), ("s2", "c"), ("s1", "c"), "E1"),
    (("s0", "b"), ("s2", "d"), ("s3", "e"), "E3"),
)


def attempt_at(outcome: float, *path: tuple[str, str], end: str | None = None, tokens: int = 1) -> Trajectory:
    """Return an attempt through (state, action) pairs with the reward at its last step."""
    steps = [Step(observation=state, action=action, tokens=tokens) for state, action in path]
    steps[-1] = replace(steps[-1], reward=outcome)
    return Trajectory(tuple(steps), outcome, final_observation=end)


def four_attempts(**fields: Sequence[object]) -> list[Trajectory]:
    """Return attempts with R = (1, 0, .5, 0) over 2, 2, 3 and 3 steps, paid at the end; `fields` by attempt."""
    group = [attempt_at(outcome, *path[:-1], end=path[-1]) for outcome, path in zip(OUTCOMES, _PATHS, strict=True)]  # type: ignore[arg-type]
    for name, values in fields.items():
        group = [replace(each, **{name: value}) for each, value in zip(group, values, strict=True)]  # type: ignore[arg-type]
    return group


def bandits(outcomes: Sequence[float]) -> list[Trajectory]:
    """Return attempts of one step in one state, all with a hindsight of 0.5."""
    group = [attempt_at(outcome, ("s", f"a{i}"), end=f"e{i}") for i, outcome in enumerate(outcomes)]
    return [replace(each, steps=(replace(each.steps[0], hindsight=0.5),)) for each in group]


def with_critic_values(trajectory: Trajectory) -> Trajectory:
    """Return the attempt with the fields of a policy and a new critic, on policy."""
    steps = (
        replace(step, value=0.0, hindsight=0.5, log_ratio=0.0, token_values=(0.0,) * step.tokens)
        for step in trajectory.steps
    )
    return replace(trajectory, steps=tuple(steps), final_value=0.0)


def advantages(rule: Rule, group: Group) -> list[list[float]]:
    """Return the advantages of one group by attempt and step."""
    return [list(credit.steps) for credit in rule([group]).groups[0]]


def flat(values: Sequence[Sequence[float]]) -> list[float]:
    """Return all values in one list."""
    return [value for each in values for value in each]
