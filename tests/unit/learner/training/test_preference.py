"""Check preferences, imitation and KL penalties: each lowers its loss and is reproducible bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from labelled_records import attempt, labelled, tiny_model
from pydantic import ValidationError

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.learning_signal import learning_signal_of
from stepstream.learner.losses.preferences import dpo, kto
from stepstream.learner.model.checkpoint import sha256_of, write_version
from stepstream.learner.training.preference import Answers, Preference, loss_of, pairs
from stepstream.learner.training.rule_inputs import RuleInputs, with_kl_penalty
from stepstream.learner.training.trainer import Trainer

REWARDS = (1.0, 0.5, 0.0, 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def config(**fields: Any) -> LearnerSettings:
    return LearnerSettings.model_validate({"preset": "tiny", "warmup_updates": 0, "learning_rate": 1e-3, **fields})


def groups(count: int = 3) -> list[list[Attempt]]:
    return [[attempt(labelled(f"g{g}", n, reward)) for n, reward in enumerate(REWARDS)] for g in range(count)]


def trainer(folder: Path, **fields: Any) -> Trainer:
    return Trainer(folder, config(**fields), folder)


@pytest.mark.parametrize("objective", ["dpo", "kto", "sft"])
def test_updates_lower_the_loss_and_are_reproducible(folder: Path, tmp_path: Path, objective: str) -> None:
    hashes = set()
    for run in range(2):
        made = trainer(folder, objective=objective, minibatches=1)
        figures = [made.update(number, groups(), version=0) for number in (1, 2, 3, 4)]
        assert figures[-1]["loss"] < figures[0]["loss"] - 1e-3
        assert figures[-1]["preferred_share"] >= figures[0]["preferred_share"]
        write_version(made.snapshot(), folder, tmp_path / str(run))
        hashes.add(sha256_of(tmp_path / f"{run}/weights/model.safetensors"))
    assert len(hashes) == 1


def test_answers_preferred_by_dpo_become_likelier(folder: Path) -> None:
    figures = trainer(folder, objective="dpo", minibatches=1).update(1, groups(), version=0)
    assert figures["loss"] == pytest.approx(torch.log(torch.tensor(2.0)).item())  # θ is the reference still
    made = trainer(folder, objective="dpo")
    for number in range(1, 6):
        figures = made.update(number, groups(), version=0)
    assert figures["preferred_share"] > 0.9


@pytest.mark.parametrize("objective", ["dpo", "kto", "sft"])
def test_the_split_into_passes_changes_only_rounding(folder: Path, objective: str) -> None:
    losses = []
    for most in (16, 4096):
        made = trainer(folder, objective=objective, minibatches=1, microbatch_tokens=most)
        losses.append([made.update(number, groups(), version=0)["loss"] for number in (1, 2, 3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def answers(current: list[float], rewards: list[float], of_group: list[int]) -> Answers:
    now = torch.tensor(current, dtype=torch.float64, requires_grad=True)
    return Answers(
        current=now,
        reference=torch.zeros_like(now),
        tokens=torch.ones_like(now) * 4,
        rewards=torch.tensor(rewards),
        good=torch.tensor(rewards) == 1.0,
        groups=torch.tensor(of_group),
        sampled=torch.ones(len(current), dtype=torch.bool),
    )


def test_pairs_are_of_one_group_and_differ_enough() -> None:
    answer_batch = answers([0.0] * 5, [1.0, 0.0, 0.5, 1.0, 0.0], [0, 0, 0, 1, 1])
    assert sorted(zip(*(each.tolist() for each in pairs(answer_batch, 0.0)), strict=True)) == [
        (0, 1),
        (0, 2),
        (2, 1),
        (3, 4),
    ]
    assert sorted(zip(*(each.tolist() for each in pairs(answer_batch, 0.5)), strict=True)) == [(0, 1), (3, 4)]


def test_weights_equal_the_gradient_of_the_loss() -> None:
    """One pair: β·σ(-β·margin), up for the better and down for the worse."""
    answer_batch = answers([-10.0, -15.0], [1.0, 0.0], [0, 0])
    loss = loss_of(config(objective="dpo"))(answer_batch)
    (gradient,) = torch.autograd.grad(loss, answer_batch.current)
    expected = 0.1 * torch.sigmoid(torch.tensor(-0.1 * 5.0, dtype=torch.float64)).item()
    assert gradient.tolist() == pytest.approx([-expected, expected])
    chosen, rejected, zero = torch.tensor([-10.0]), torch.tensor([-15.0]), torch.zeros(1)
    assert loss.item() == pytest.approx(dpo(chosen, rejected, zero, zero).item())


def test_imitation_counts_only_tokens_of_successes() -> None:
    answer_batch = answers([-8.0, -100.0], [1.0, 0.0], [0, 0])
    assert loss_of(config(objective="sft"))(answer_batch).item() == pytest.approx(8.0 / 4)


def test_only_the_policy_s_own_answers_estimate_the_distance_from_the_root() -> None:
    answer_batch = answers([2.0, -1.0], [1.0, 0.0], [0, 1])
    loss, judged = loss_of(config(objective="kto")), torch.tensor([True, False])
    zero = torch.zeros(2, dtype=torch.float64)
    for own, expected in ((judged, 2.0), (torch.tensor([False, False]), 0.0), (~judged, -1.0)):
        found = loss(replace(answer_batch, sampled=own))
        kl = torch.tensor(expected, dtype=torch.float64)
        assert found.item() == pytest.approx(kto(answer_batch.current, zero, judged, kl).mean().item())


def test_minibatches_keep_groups_whole() -> None:
    parts = Preference(config(objective="dpo", minibatches=2)).minibatches(groups(5), 1)
    assert sorted(number for part in parts for number in part) == [0, 1, 2, 3, 4]
    assert [len(part) for part in parts] == [3, 2]


@pytest.mark.parametrize(
    ("fields", "rewards", "reason"),
    [
        ({"objective": "dpo"}, (1.0, 1.0), "no_variance"),
        ({"objective": "dpo"}, (1.0, 0.0), ""),
        ({"objective": "dpo", "preference_margin": 0.6}, (1.0, 0.5), "no_variance"),
        ({"objective": "kto"}, (1.0, 1.0), ""),
        ({"objective": "sft"}, (0.0, 0.5), "no_success"),
        ({"objective": "sft"}, (1.0,), ""),
    ],
)
def test_each_preference_checks_its_groups(fields: dict[str, Any], rewards: tuple[float, ...], reason: str) -> None:
    attempts = [attempt(labelled("g", n, reward)) for n, reward in enumerate(rewards)]
    assert learning_signal_of(config(**fields))(attempts) == reason


# --- distance from the reference


def test_a_penalty_keeps_the_policy_near_the_root(folder: Path) -> None:
    moved = []
    for weight in (0.001, 3.0):
        made = trainer(folder, kl_weight=weight, minibatches=1, learning_rate=1e-2)
        for number in range(1, 8):
            figures = made.update(number, groups(), version=0)
        moved.append(figures["reference_kl"])
    assert moved[0] > 2 * moved[1] > 0


def test_at_the_root_the_distance_is_zero(folder: Path) -> None:
    assert trainer(folder, kl_weight=1.0, minibatches=1).update(1, groups(), 0)["reference_kl"] == pytest.approx(
        0.0, abs=1e-9
    )


def test_the_penalty_may_be_part_of_token_rewards(folder: Path) -> None:
    fields: dict[str, Any] = {"advantage": "reinforce_pp", "kl_place": "reward", "minibatches": 1}
    plain, paid = trainer(folder, **(fields | {"kl_place": "loss"})), trainer(folder, kl_weight=1.0, **fields)
    first = [made.update(1, groups(), 0) for made in (plain, paid)]
    assert first[0]["loss"] == pytest.approx(first[1]["loss"])  # at the root itself the penalty is 0
    assert first[1]["reference_kl"] == pytest.approx(0.0, abs=1e-9)
    rows = [tokens for group in groups() for each in group for tokens in each.sequences]
    with torch.no_grad():
        distance = float((paid.policy.logprobs(rows) - trainer(folder).policy.logprobs(rows)).mean())
    second = [made.update(2, groups(), 0) for made in (plain, paid)]
    assert second[1]["reference_kl"] == pytest.approx(distance, rel=1e-4)
    assert second[0]["loss"] != pytest.approx(second[1]["loss"], rel=1e-3)


def test_a_token_s_penalty_is_its_own_distance() -> None:
    group = [attempt(labelled("g", n, 1.0)) for n in range(2)]
    rows = [tokens for each in group for tokens in each.sequences]
    own = {n: torch.arange(float(tokens.trained.size)) for n, tokens in enumerate(rows)}
    far = {n: torch.full_like(values, 1.0) for n, values in own.items()}
    far[1][0] = -torch.inf
    found = with_kl_penalty(RuleInputs([[each.credit for each in group]]), [group], own, far, 0.5)
    for n, credit in enumerate(found.groups[0]):
        paid = [reward for step in credit.steps for reward in step.token_rewards]
        assert paid == [0.0 if (n, place) == (1, 0) else -0.5 * (place - 1.0) for place in range(len(paid))]
        assert [len(step.token_rewards) for step in credit.steps] == [step.tokens for step in credit.steps]
    total = sum(reward for credit in found.groups[0] for step in credit.steps for reward in step.token_rewards)
    assert found.distance == pytest.approx(-2.0 * total / sum(values.numel() for values in own.values()))


def test_a_rule_without_token_rewards_rejects_a_reward_penalty() -> None:
    with pytest.raises(ValidationError, match="kl_place=loss"):
        config(advantage="dr_grpo", kl_place="reward")


def test_with_adapters_the_reference_is_the_model_below_them(folder: Path) -> None:
    made = Trainer(folder, config(kl_weight=0.1, lora_rank=2, minibatches=1))
    assert made.update(1, groups(), 0)["reference_kl"] == pytest.approx(0.0, abs=1e-9)
    assert made.update(2, groups(), 0)["reference_kl"] > 0


def test_a_reference_must_be_given(folder: Path) -> None:
    with pytest.raises(ValueError, match="root"):
        Trainer(folder, config(objective="kto"))


@pytest.mark.parametrize("objective", ["dpo", "kto", "sft"])
def test_a_penalty_with_preferences_is_rejected(objective: str) -> None:
    with pytest.raises(ValidationError, match="kl_weight=0"):
        config(objective=objective, kl_weight=0.1)
