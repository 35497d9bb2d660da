"""Check the policy's scores of steps given the final observation."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from labelled_records import attempt, group_of, labelled, tiny_model

from stepstream.config import LearnerSettings, SettingsError
from stepstream.learner.advantages import Hcapo
from stepstream.learner.advantages.from_config import GROUP, rule_of
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.learning_signal import needs_group
from stepstream.learner.model.pretrained import load_model
from stepstream.learner.training.hindsight import final_observation, hindsight_rows, with_hindsight
from stepstream.learner.training.trainer import Trainer
from stepstream.topics.events import new_reward_component

THREE = attempt(labelled("g", 0, 1.0, versions=(0, 0, 0)))


def last_heard() -> list[int]:
    (tokens,) = THREE.sequences
    return tokens.ids[tokens.trained[tokens.steps == 1][-1] + 1 : tokens.trained[tokens.steps == 2][0]].tolist()


def test_all_steps_share_a_row_behind_the_final_observation() -> None:
    (tokens,) = THREE.sequences
    ending = final_observation(THREE)
    assert ending.tolist() == last_heard()
    (row,) = hindsight_rows(THREE, ending.size + tokens.ids.size)
    assert row.ids.tolist() == [*ending, *tokens.ids]
    assert row.ids[row.trained].tolist() == tokens.ids[tokens.trained].tolist()
    assert row.steps.tolist() == tokens.steps.tolist()


@pytest.mark.parametrize("less", range(1, 40))
def test_the_oldest_context_is_dropped_if_a_row_is_full(less: int) -> None:
    (tokens,) = THREE.sequences
    ending = final_observation(THREE)
    most = ending.size + tokens.ids.size - less
    rows = hindsight_rows(THREE, most)
    for row in rows:
        assert row.ids.size <= most
        assert row.ids[: ending.size].tolist() == ending.tolist()
        end = int(tokens.trained[np.isin(tokens.steps, row.steps)][-1]) + 1
        assert row.ids[ending.size :].tolist() == tokens.ids[end - row.ids.size + ending.size : end].tolist()
        assert row.ids[row.trained].tolist() == tokens.ids[tokens.trained[np.isin(tokens.steps, row.steps)]].tolist()
    scored = [step for row in rows for step in np.unique(row.steps)]
    room = most - ending.size
    assert sorted(scored) == [step for step in range(3) if _span(step) <= room and room > 0]


def _span(step: int) -> int:
    """Tokens from a step's first trained one to its last, or to the sequence's start where that is nearer."""
    (tokens,) = THREE.sequences
    own = tokens.trained[tokens.steps == step]
    return int(own[-1] - own[0]) + 1


def test_an_attempt_with_one_step_gets_no_row() -> None:
    assert hindsight_rows(attempt(labelled("g", 0, 1.0, versions=(0,))), 512) == []


def test_a_step_that_was_not_scored_is_neutral() -> None:
    (row,) = hindsight_rows(THREE, 512)
    only = row.steps != 1
    part = replace(row, trained=row.trained[only], steps=row.steps[only])
    logprobs = torch.where(torch.from_numpy(part.steps) == 0, -1.0, -2.0)
    ((seen,),) = with_hindsight([[THREE.credit]], [[part]], {0: logprobs})
    assert [step.hindsight for step in seen.steps] == pytest.approx(
        [math.exp(-0.2), (math.exp(-0.2) + math.exp(-0.4)) / 2, math.exp(-0.4)]
    )
    assert Hcapo().ratios(seen)[1] == pytest.approx(1.0)
    ((unknown,),) = with_hindsight([[THREE.credit]], [[part]], {0: torch.full_like(logprobs, torch.nan)})
    assert Hcapo().ratios(unknown) == [1.0, 1.0, 1.0]


def test_the_policy_s_scores_are_those_of_its_own_forward_pass(tmp_path: Path) -> None:
    trainer = Trainer(tiny_model(tmp_path), LearnerSettings(preset="tiny", advantage="hcapo", warmup_updates=0))
    model = load_model(tmp_path)
    group = [attempt(record) for record in group_of("g", 3, versions=(0, 0, 0))]
    (credits,) = trainer._rule_inputs([group]).groups
    for one, credit in zip(group, credits, strict=True):
        (tokens,) = one.sequences
        ending = final_observation(one)
        ids = torch.from_numpy(np.concatenate([ending, tokens.ids]))
        with torch.no_grad():
            logprobs = model(ids[None]).logits[0].log_softmax(-1)
        for number, step in enumerate(credit.steps):
            at = torch.from_numpy(tokens.trained[tokens.steps == number] + ending.size)
            expected = math.exp(float(logprobs[at - 1, ids[at]].mean()) / 5)
            assert step.hindsight == pytest.approx(expected, rel=1e-4)


PLUG = """
class Critic:
    def __init__(self, how):
        self.how = how
    def __call__(self, trajectory):
        return [step.scores.get("usefulness", 0.5) + self.how.credit_discount for step in trajectory.steps]
"""


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LearnerSettings:
    """A package with a critic that reads a shadow component, as a process reward model's feedback gives one."""
    (tmp_path / "hindsight_plug.py").write_text(PLUG)
    info = tmp_path / "hindsight_plug-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hindsight-plug\nVersion: 1\n")
    entry = f"[{GROUP}]\nprm = hindsight_plug:Critic\n"
    (info / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(tmp_path)
    return LearnerSettings(
        preset="tiny", advantage="hcapo", credit_hindsight="prm", credit_discount=1.0, warmup_updates=0
    )


def scored(number: int, *useful: float) -> Attempt:
    record = labelled("g", number, float(number == 0), versions=(0,) * len(useful))
    for step, value in zip(record["steps"], useful, strict=True):
        shadow = {"weight": 0.0, "kind": "shadow", "level": "step", "raw_value": value}
        step["components"].append(new_reward_component(name="usefulness", value=value, source="prm", **shadow))  # type: ignore[arg-type]
    return attempt(record)


def test_a_critic_is_chosen_by_name_and_replaces_the_policy_s_scores(plugged: LearnerSettings, tmp_path: Path) -> None:
    group = [scored(0, 0.2, 1.0, 0.6), scored(1, 0.4, 0.4, 0.4)]
    rule = rule_of(plugged)
    assert rule.needs == frozenset()
    assert rule_of(LearnerSettings(preset="tiny", advantage="hcapo")).needs == {"hindsight"}
    assert isinstance(rule, Hcapo)
    assert rule.ratios(group[0].credit) == pytest.approx([0.8, 1.2, 1.0])  # (1.2, 2, 1.6) over 1.6, clipped
    dull, useful, plain = rule([[each.credit for each in group]]).groups[0][0].steps
    assert useful > plain > dull
    trainer = Trainer(tiny_model(tmp_path / "model"), plugged)
    assert trainer._rule_inputs([group]).groups[0][0].steps[0].hindsight is None
    assert trainer.update(1, [group], 0)["credited_share"] == 1.0


def test_an_unknown_critic_is_named(plugged: LearnerSettings) -> None:
    with pytest.raises(SettingsError, match=r"no critic 'other' .*; known critics: policy, prm"):
        rule_of(plugged.model_copy(update={"credit_hindsight": "other"}))
    assert needs_group(plugged.model_copy(update={"credit_hindsight": "other"}))  # asked where it is not installed
