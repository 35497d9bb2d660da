"""Check the conversion of labelled trajectories to rule inputs, and of advantages to trained tokens."""

from typing import Any, get_args

import numpy as np
import pytest
from credit_cases import LOSS_OF, advantages, with_critic_values
from labelled_records import attempt, labelled

from stepstream.config import LearnerSettings
from stepstream.learner.advantages import (
    Credit,
    GiGpo,
    GroupStepGae,
    Grpo,
    Hcapo,
    Hgpo,
    PpoGae,
    ReinforcePlusPlus,
    Rule,
    Salt,
    Shadow,
    StepGae,
    Stratified,
    Trajectory,
    VTrace,
    expand,
    expand_targets,
)
from stepstream.learner.advantages.from_config import rule_of
from stepstream.learner.advantages.from_record import trajectory_of
from stepstream.learner.data.sequences import Invalid
from stepstream.topics import events


def record(*steps: tuple[list[int], list[int], float], **fields: Any) -> events.LabeledTrajectory:
    """A trajectory of one sequence: by step, what the environment said, what the agent answered, and the reward."""
    made = labelled("g", 0, sum(reward for _, _, reward in steps))
    ids: list[int] = []
    spans = []
    for index, (observed, answered, _) in enumerate(steps):
        start = len(ids) + len(observed)
        ids += observed + answered
        # Two spans of one step: the weights changed inside the response.
        for a, b, version in ((start, start + 1, 0), (start + 1, len(ids), 1)):
            if a < b:
                spans.append(events.new_sequence_span(start=a, end=b, step_index=index, model="demo", version=version))
    made["sequences"] = [
        events.new_training_sequence(token_ids=ids, spans=spans, logprobs=[-1.0] * sum(len(s[1]) for s in steps))
    ]
    made["steps"] = [
        events.new_labeled_step(
            step_index=i, event_id=f"s{i}", reward=r, return_to_go=0.0, response_tokens=len(answered)
        )
        for i, (_, answered, r) in enumerate(steps)
    ]
    values: dict[str, Any] = {**made, **fields}
    return events.new_labeled_trajectory(**values)


NAMES = get_args(LearnerSettings.model_fields["advantage"].annotation)
THREE = (([1, 2], [3, 4], 0.0), ([5], [6], 0.0), ([5], [7, 8, 9], 1.0))


def test_observations_are_new_tokens_and_actions_are_responses() -> None:
    first, second, third = trajectory_of(record(*THREE)).steps
    assert [step.tokens for step in (first, second, third)] == [2, 1, 3]
    assert [step.reward for step in (first, second, third)] == [0.0, 0.0, 1.0]
    assert second.observation == third.observation != first.observation
    assert len({first.action, second.action, third.action}) == 3


def test_tool_calls_are_the_action_and_are_counted() -> None:
    made = [record(*THREE), record(([1, 2], [9, 9], 0.0), *THREE[1:])]
    for each in made:
        each["steps"][0]["tool_calls"] = [events.new_tool_call(call_id="c", name="get", arguments='{"k":1}')]
    one, other = (trajectory_of(each) for each in made)
    assert one.steps[0].action == other.steps[0].action
    assert (one.tool_calls, trajectory_of(record(*THREE)).tool_calls) == (1, 0)


def test_ends_and_branches() -> None:
    ended, cut = trajectory_of(record(*THREE, end="terminated")), trajectory_of(record(*THREE, end="truncated"))
    assert (ended.truncated, cut.truncated) == (False, True)
    assert ended.final_observation is not None
    assert cut.final_observation is None
    branch = trajectory_of(record(*THREE, parent_trajectory_id="t", parent_step_index=1))
    assert (branch.name, branch.branch) == ("g/0", ("t", 1))
    assert trajectory_of(record(*THREE)).branch is None
    assert trajectory_of(record(*THREE, parent_trajectory_id="t")).branch is None  # called by it, nobody knows where


def test_a_span_must_name_a_step_of_the_record() -> None:
    made = record(*THREE)
    del made["steps"][1]
    with pytest.raises(Invalid, match="step 1"):
        attempt(made)


def test_a_step_s_reward_is_a_number() -> None:
    made = record(*THREE)
    made["steps"][0]["reward"] = float("nan")
    with pytest.raises(Invalid, match="reward"):
        attempt(made)


def test_steps_without_trained_tokens_and_gaps_keep_their_place() -> None:
    made = record(*THREE)
    spans = made["sequences"][0]["spans"]
    made["sequences"][0]["spans"] = [span for span in spans if span["step_index"] != 1]
    made["sequences"][0]["logprobs"] = [-1.0] * 5
    for each in [*made["steps"], *made["sequences"][0]["spans"]]:
        each["step_index"] *= 2
    seen = attempt(made, 3, 7)
    assert seen.position == (3, 7)
    assert seen.sequences[0].steps.tolist() == [0, 0, 2, 2, 2]
    assert [step.tokens for step in seen.credit.steps] == [2, 0, 3]
    assert seen.credit.steps[1].observation is None


@pytest.mark.parametrize("name", NAMES)
def test_every_configured_rule_credits_recorded_attempts(name: str) -> None:
    rule = rule_of(LearnerSettings.model_validate({"preset": "tiny", "advantage": name, **LOSS_OF.get(name, {})}))
    group = [attempt(record(*THREE)), attempt(record(*THREE[:2], ([5], [7], 0.0))), attempt(record(*THREE[:2]))]
    result = rule([[with_critic_values(each.credit) for each in group]]).groups[0]
    best, *others = (expand(c, each.sequences[0].steps) for c, each in zip(result, group, strict=True))
    assert best.size == 6
    assert best[-1] > max(other[-1] for other in others)


def test_settings_reach_their_rule() -> None:
    given = {
        "credit_discount": 0.5,
        "credit_trace": 0.6,
        "credit_step_weight": 0.7,
        "credit_history": 3,
        "credit_stratum": "steps",
    }
    config = {
        name: LearnerSettings.model_validate(
            {"preset": "tiny", "advantage": name, "credit_blend": 0.1, **given, **LOSS_OF.get(name, {})}
        )
        for name in NAMES
    }
    assert rule_of(config["gigpo"]) == GiGpo(step_weight=0.7, discount=0.5)
    assert rule_of(config["hgpo"]) == Hgpo(discount=0.5, history=3)
    assert rule_of(config["step_gae"]) == GroupStepGae(discount=0.5, trace=0.6)
    assert rule_of(config["shadow"]) == Shadow(discount=0.5, trace=0.6)
    assert rule_of(config["ppo_gae"]) == PpoGae(discount=1.0, trace=0.6)
    assert rule_of(config["step_ppo"]) == StepGae(discount=0.5, trace=0.6)
    assert rule_of(config["vtrace"]) == VTrace(discount=0.5)
    assert rule_of(config["hcapo"]) == Hcapo(weight=0.7, discount=0.5)
    assert rule_of(config["stratified"]) == Stratified(blend=0.1, by="steps")
    assert rule_of(config["reinforce_pp_baseline"]) == ReinforcePlusPlus(baseline=True)


def advantages_of(rule: Rule, *made: events.LabeledTrajectory) -> list[list[float]]:
    group: list[Trajectory] = [trajectory_of(each) for each in made]
    return advantages(rule, group)


def test_anchors_and_edges_are_found_in_tokens() -> None:
    won, lost = record(*THREE), record(*THREE[:2], ([5], [9, 9, 9], 0.0))
    grpo, gigpo, salt = (advantages_of(rule, won, lost) for rule in (Grpo(), GiGpo(), Salt()))
    assert gigpo[0][0] > grpo[0][0]  # met at the start, and more was still to come
    assert salt[0][:2] == salt[1][:2] == [0.0, 0.0]  # both did the same here
    assert salt[0][2] == grpo[0][2]


def test_token_advantages_must_match_the_number_of_trained_tokens() -> None:
    credit = Credit((0.0, 3.0), tokens=((1.0, -1.0), (3.0,)))
    assert expand(credit, np.array([0, 0, 1])).tolist() == [1.0, -1.0, 3.0]
    assert expand(Credit((0.5, 3.0)), np.array([0, 0, 1])).tolist() == [0.5, 0.5, 3.0]
    assert expand(credit, np.array([], np.int64)).size == 0
    with pytest.raises(ValueError, match="step 0"):
        expand(credit, np.array([0, 1]))


def test_value_targets_are_before_each_step_or_each_token() -> None:
    steps = np.array([0, 0, 2, 2, 2])
    by_step = expand_targets(Credit((0.0, 0.0, 0.0), targets=(0.1, 0.2, 0.3)), steps)
    assert by_step.tolist() == pytest.approx([0.1, np.nan, 0.3, np.nan, np.nan], nan_ok=True)
    by_token = Credit((0.0, 0.0, 0.0), tokens=((1.0, 1.0), (), (1.0, 1.0, 1.0)), targets=(0.1, 0.2, 0.3, 0.4, 0.5))
    assert expand_targets(by_token, steps).tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert expand_targets(by_token, steps[2:]).tolist() == [0.3, 0.4, 0.5]
    assert np.isnan(expand_targets(Credit((0.0, 0.0, 0.0)), steps)).all()
