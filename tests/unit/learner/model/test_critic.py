"""Check the critic: its numbers by hand, its learning, and that it is saved with its version."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelled_records import attempt, group_of, labelled, tiny_model

from stepstream.config import LearnerSettings
from stepstream.learner.advantages import expand_targets
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.reward_shaping import Discounting
from stepstream.learner.model.checkpoint import sha256_of, write_root, write_version
from stepstream.learner.model.critic import CRITIC, Critic
from stepstream.learner.model.pretrained import load_model
from stepstream.learner.training.trainer import Trainer

FILES = ("weights/model.safetensors", "training/optimizer.safetensors", f"training/{CRITIC}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def config(**fields: Any) -> LearnerSettings:
    return LearnerSettings.model_validate({"preset": "tiny", "warmup_updates": 0, **fields})


def groups(seed: int = 0, **fields: Any) -> list[list[Attempt]]:
    return [[attempt(record) for record in group_of(f"g{n}", 3, seed=seed, **fields)] for n in range(2)]


def opinionated(trainer: Trainer) -> Critic:
    """The trainer's critic, with something to say."""
    critic = trainer._critic
    assert critic is not None
    critic._weight.copy_(10 * torch.randn(critic._weight.shape, generator=torch.Generator().manual_seed(0)))
    return critic


@torch.no_grad()
def by_hand(model: Any, critic: Critic, one: Attempt) -> tuple[np.ndarray, np.ndarray, float]:
    """Log-probability of each trained token, V before it, and V at the end, of an attempt of one sequence."""
    (tokens,) = one.sequences
    out = model(torch.from_numpy(tokens.ids)[None], output_hidden_states=True)
    hidden = out.hidden_states[-1][0]
    value = (hidden / hidden.norm(dim=1, keepdim=True)) @ critic._weight / hidden.shape[1] ** 0.5
    before = torch.from_numpy(tokens.trained - 1)
    logprobs = out.logits[0].log_softmax(-1)[before, torch.from_numpy(tokens.ids[tokens.trained])]
    return logprobs.numpy(), value[before].numpy(), float(value[-1])


@pytest.mark.parametrize("end", ["truncated", "terminated"])
def test_rule_inputs_equal_the_model_s_output_token_by_token(folder: Path, end: str) -> None:
    trainer, model = Trainer(folder, config(advantage="ppo_gae")), load_model(folder)
    critic = opinionated(trainer)
    given = groups(end=end)
    inputs = trainer._rule_inputs(given)
    for number, (one, seen) in enumerate(
        pair for group, credits in zip(given, inputs.groups, strict=True) for pair in zip(group, credits, strict=True)
    ):
        logprobs, values, final = by_hand(model, critic, one)
        (tokens,) = one.sequences
        np.testing.assert_allclose(inputs.logprobs[number], logprobs, atol=1e-4)
        np.testing.assert_allclose(inputs.values[number], values, atol=1e-4)
        assert (seen.final_value is None) == (end == "terminated")
        if seen.final_value is not None:
            assert seen.final_value == pytest.approx(final, abs=1e-4)
        for index, step in enumerate(seen.steps):
            own = tokens.steps == index
            assert step.value == pytest.approx(values[own][0], abs=1e-4)
            assert step.token_values == pytest.approx(values[own].tolist(), abs=1e-4)
            assert step.log_ratio == pytest.approx((logprobs - tokens.logprobs)[own].sum(), abs=1e-3)


def test_figures_are_those_of_the_critic_before_the_update(folder: Path) -> None:
    trainer = Trainer(folder, config(advantage="step_ppo", minibatches=1, credit_trace=1.0, credit_discount=1.0))
    assert trainer.limits("demo").discounting == Discounting(frozenset({1.0}), bootstraps=True)
    critic, model = opinionated(trainer), load_model(folder)
    given = groups()
    values = np.concatenate(
        [by_hand(model, critic, one)[1][np.unique(one.sequences[0].steps, return_index=True)[1]]
         for group in given for one in group]
    )  # fmt: skip
    # With γ = λ = 1 the target of every step is what the attempt got.
    targets = np.repeat([one.reward for group in given for one in group], 2)
    figures = trainer.update(1, given, version=0)
    assert figures["value_loss"] == pytest.approx(np.square(values - targets).mean() / 2, rel=1e-3)
    assert figures["explained_variance"] == pytest.approx(1 - (targets - values).var() / targets.var(), rel=1e-3)
    assert "value_loss" not in Trainer(folder, config()).update(1, given, version=0)


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_the_gradient_is_the_losss(clip: float, tmp_path: Path) -> None:
    critic = Critic(6, config(critic_clip=clip), tmp_path)
    draw = torch.Generator().manual_seed(1)
    states, targets = torch.randn(40, 6, generator=draw), torch.randn(40, generator=draw)
    targets[::5] = torch.nan
    before = 0.3 * torch.randn(40, generator=draw)
    critic._weight.copy_(torch.randn(6, generator=draw))
    w = critic._weight.clone().requires_grad_()
    has_target = ~targets.isnan()
    value = ((states / states.norm(dim=1, keepdim=True)) @ w / 6**0.5)[has_target]
    loss = (value - targets[has_target]) ** 2
    if clip:
        old = before[has_target]
        loss = torch.maximum(loss, (torch.clamp(value, old - clip, old + clip) - targets[has_target]) ** 2)
    (loss.sum() / 2).backward()
    found = critic.gradient_of(states, targets, before)
    assert found.targets == 32
    assert found.loss == pytest.approx(loss.sum().item() / 2, rel=1e-5)
    torch.testing.assert_close(found.gradient, w.grad, atol=1e-5, rtol=1e-5)


def test_without_targets_or_with_infinite_gradients_the_critic_stays(tmp_path: Path) -> None:
    critic = Critic(3, config(), tmp_path)
    nothing = critic.gradient_of(torch.ones(2, 3), torch.full((2,), torch.nan), torch.zeros(2))
    assert critic.learn([nothing]) == 0.0
    critic.learn([critic.gradient_of(torch.full((1, 3), torch.nan), torch.ones(1), torch.zeros(1))])
    assert torch.equal(critic.values(torch.ones(1, 3)), torch.zeros(1))


def test_the_critic_learns_the_value_of_tasks(folder: Path) -> None:
    trainer = Trainer(folder, config(advantage="step_ppo", learning_rate=1e-6))
    records = [labelled("g", number, float(number % 2)) for number in range(8)]
    for record in records:
        record["sequences"][0]["token_ids"][:4] = [5, 6, 7, 8 + int(record["reward"])]  # two tasks: hopeless and easy
    group = [attempt(record) for record in records]
    figures = [trainer.update(number, [group], version=0) for number in range(1, 31)]
    assert figures[0]["explained_variance"] == 0.0  # a fresh one says 0 everywhere
    assert figures[-1]["value_loss"] < 0.2 * figures[0]["value_loss"]
    assert figures[-1]["explained_variance"] > 0.7
    (credits,) = trainer._rule_inputs([group]).groups
    firsts = [credit.steps[0].value for credit in credits]
    assert np.corrcoef(np.array(firsts, dtype=float), [one.reward for one in group])[0, 1] > 0.9


def test_the_policy_gets_no_gradient_from_the_critic(folder: Path) -> None:
    changed = []
    for rate in (1e-6, 10.0):
        trainer = Trainer(folder, config(advantage="ppo_gae", minibatches=1, critic_rate=rate))
        trainer.update(1, groups(), version=0)
        changed.append(torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()]))
    assert torch.equal(*changed)


def test_a_version_has_its_own_critic(folder: Path, tmp_path: Path) -> None:
    settings = config(advantage="step_ppo", lora_rank=2)
    straight = Trainer(folder, settings)
    straight.update(1, groups(1), version=0)
    write_version(straight.snapshot(), folder, tmp_path / "1")
    straight.update(2, groups(2), version=1)
    write_version(straight.snapshot(), folder, tmp_path / "2")
    resumed = Trainer(tmp_path / "1", settings)
    resumed.update(2, groups(2), version=1)
    described = write_version(resumed.snapshot(), tmp_path / "1", tmp_path / "again")
    for file in FILES:
        assert sha256_of(tmp_path / "again" / file) == sha256_of(tmp_path / "2" / file)
    assert f"training/{CRITIC}" in [file["path"] for file in described]
    # A learner without a critic leaves it behind, as a new root does; one with a critic then begins anew.
    write_version(Trainer(tmp_path / "2", config()).snapshot(), tmp_path / "2", tmp_path / "3")
    write_root(tmp_path / "2", tmp_path / "root")
    assert not (tmp_path / "3/training" / CRITIC).exists()
    assert not (tmp_path / "root/training" / CRITIC).exists()
    fresh = Trainer(tmp_path / "3", settings)._critic
    assert fresh is not None
    assert not fresh.state()["weight"].any()


def test_a_critic_of_another_width_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(3)}, tmp_path / CRITIC)
    assert not Critic(4, config(), tmp_path).state()["weight"].any()
    assert Critic(3, config(), tmp_path).state()["weight"].all()


def test_targets_follow_their_rows(folder: Path) -> None:
    from stepstream.learner.training.rows import rows_of

    trainer = Trainer(folder, config(advantage="vtrace", loss_weight="none"))
    opinionated(trainer)
    given = groups()
    inputs = trainer._rule_inputs(given)
    credits = [credit for group in trainer._rule(inputs.groups).groups for credit in group]
    for row, credit in zip(rows_of(given, trainer._rule, inputs), credits, strict=True):
        np.testing.assert_array_equal(row.targets, expand_targets(credit, row.tokens.steps).astype(np.float32))
        assert np.isfinite(row.targets).sum() == 2
