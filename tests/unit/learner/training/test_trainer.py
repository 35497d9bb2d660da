"""Check updates: their direction, reproducibility and figures."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from credit_cases import LOSS_OF
from labelled_records import attempt, group_of, labelled, tiny_model

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.model.checkpoint import sha256_of, write_version
from stepstream.learner.model.pretrained import CannotTrain
from stepstream.learner.training.trainer import Trainer, learning_rate

FILES = ("weights/model.safetensors", "training/optimizer.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def config(**fields: Any) -> LearnerSettings:
    return LearnerSettings.model_validate({"preset": "tiny", "warmup_updates": 0, **fields})


def groups(count: int, seed: int = 0) -> list[list[Attempt]]:
    return [[attempt(record) for record in group_of(f"g{n}", 4, seed=seed)] for n in range(count)]


def total_logprob(trainer: Trainer, chosen: list[Attempt]) -> float:
    with torch.no_grad():
        return trainer.policy.logprobs([s for a in chosen for s in a.sequences]).sum().item()


def on_policy(trainer: Trainer, group: list[Any]) -> list[Attempt]:
    """The records with the behaviour log-probabilities that the trainer's model gives."""
    attempts = [attempt(record) for record in group]
    with torch.no_grad():
        for each in attempts:
            each.sequences[0].logprobs[:] = trainer.policy.logprobs(each.sequences).numpy()
    return attempts


@pytest.mark.parametrize("advantage", get_args(LearnerSettings.model_fields["advantage"].annotation))
def test_successes_become_likelier_and_failures_less_likely(folder: Path, advantage: str) -> None:
    trainer = Trainer(folder, config(advantage=advantage, **LOSS_OF.get(advantage, {})))
    records = [labelled("g", n, float(n < 2)) for n in range(4)]
    for record in records:
        record["sequences"][0]["token_ids"][:4] = [5, 6, 7, 8]  # one task: they begin in the same state
    group = on_policy(trainer, records)
    before = total_logprob(trainer, group[:2]) - total_logprob(trainer, group[2:])
    figures = trainer.update(1, [group], version=0)
    assert total_logprob(trainer, group[:2]) - total_logprob(trainer, group[2:]) > before + 0.1
    assert 0.3 < figures["credited_share"] <= 1.0
    assert figures["kl"] == pytest.approx(0.0, abs=1e-6)
    assert figures["effective_share"] == pytest.approx(1.0, abs=1e-4)


def test_the_same_update_gives_the_same_bits(folder: Path, tmp_path: Path) -> None:
    hashes = set()
    for run in range(2):
        trainer = Trainer(folder, config())
        for number in (1, 2):
            trainer.update(number, groups(3, seed=number), version=0)
        write_version(trainer.snapshot(), folder, tmp_path / str(run))
        hashes.add(tuple(sha256_of(tmp_path / str(run) / file) for file in FILES))
    assert len(hashes) == 1


def test_continuing_from_files_is_continuing(folder: Path, tmp_path: Path) -> None:
    straight = Trainer(folder, config())
    straight.update(1, groups(3, seed=1), version=0)
    write_version(straight.snapshot(), folder, tmp_path / "1")
    straight.update(2, groups(3, seed=2), version=1)
    write_version(straight.snapshot(), folder, tmp_path / "2")
    resumed = Trainer(tmp_path / "1", config())
    resumed.update(2, groups(3, seed=2), version=1)
    write_version(resumed.snapshot(), tmp_path / "1", tmp_path / "again")
    for file in FILES:
        assert sha256_of(tmp_path / "again" / file) == sha256_of(tmp_path / "2" / file)


def test_one_minibatch_equals_the_sum_of_its_microbatches(folder: Path) -> None:
    weights = []
    for most in (1, 100_000):
        trainer = Trainer(folder, config(minibatches=1, microbatch_tokens=most))
        trainer.update(1, groups(2), version=0)
        weights.append(torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], atol=2e-5, rtol=0)


def test_minibatches_contain_whole_groups_if_possible(folder: Path) -> None:
    trainer = Trainer(folder, config(minibatches=2))
    for number in range(8):
        parts = trainer._minibatches(groups(4), number)
        assert sorted(row for part in parts for row in part) == list(range(16))
        assert all(len(part) == 8 and len({row // 4 for row in part}) == 2 for part in parts)
    cut = Trainer(folder, config(minibatches=3))._minibatches(groups(1), 1)
    assert sorted(map(len, cut)) == [1, 1, 2]


def test_later_minibatches_are_clipped_against_the_update_s_start(folder: Path) -> None:
    trainer = Trainer(folder, config(minibatches=4, learning_rate=0.05, clip_low=0.01, clip_high=0.01))
    group = on_policy(trainer, [labelled("g", n, float(n < 8)) for n in range(16)])
    figures = trainer.update(1, [group], version=0)
    assert figures["clip_share"] > 0.1
    assert figures["kl"] == pytest.approx(0.0, abs=1e-6)  # p is still the policy that sampled


def test_a_gradient_that_is_not_finite_is_not_stepped_on(folder: Path) -> None:
    trainer = Trainer(folder, config(minibatches=1))
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    with torch.no_grad():
        next(trainer.model.parameters()).view(-1)[0] = float("nan")
    figures = trainer.update(1, groups(1), version=0)
    assert figures["steps_skipped"] == 1.0
    assert all(torch.equal(a, b) for a, b in zip(before[1:], list(trainer.model.parameters())[1:], strict=True))


class Kept:
    """Counts what is kept for the backward pass."""

    elements = 0

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        self.elements += tensor.numel()
        return tensor


def test_recomputed_activations_are_the_same_bits(folder: Path) -> None:
    gradients = []
    for recompute in (False, True):
        trainer = Trainer(folder, config(minibatches=1, activation_checkpointing=recompute))
        saved = Kept()
        with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
            trainer.update(1, groups(2), version=0)
        gradients.append((saved.elements, torch.cat([w.detach().flatten() for w in trainer.model.parameters()])))
    assert gradients[1][0] < gradients[0][0] / 2
    assert torch.equal(gradients[0][1], gradients[1][1])


def test_bfloat16_learns_as_float32_does(folder: Path) -> None:
    changes = []
    for precision in ("float32", "bfloat16"):
        trainer = Trainer(folder, config(minibatches=1, precision=precision))
        before = torch.cat([w.detach().flatten() for w in trainer.model.parameters()])
        figures = trainer.update(1, groups(4), version=0)
        assert all(w.dtype == torch.float32 for w in trainer.model.parameters())
        changes.append(torch.cat([w.detach().flatten() for w in trainer.model.parameters()]) - before)
        assert figures["entropy"] == pytest.approx(4.3, abs=0.3)
    # The first step of Adam is the gradient's sign times the rate.
    assert (changes[0] * changes[1] > 0).float().mean() > 0.95


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch._dynamo looks at it
def test_layers_are_compiled_if_configured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.nn.Module.compile
    compiled: list[str] = []

    def traced(module: torch.nn.Module, **options: Any) -> None:
        compiled.append(type(module).__name__)
        real(module, backend="aot_eager", **options)  # as inductor, without its C++ compiler's minutes

    monkeypatch.setattr(torch.nn.Module, "compile", traced)
    trainers = [Trainer(folder, config(minibatches=1, compile=choice)) for choice in (False, True)]
    assert compiled == ["LlamaDecoderLayer"] * 2
    figures = [trainer.update(1, groups(2), version=0) for trainer in trainers]
    assert figures[1]["grad_norm"] == pytest.approx(figures[0]["grad_norm"], rel=1e-4)


def test_staleness_is_counted_by_token(folder: Path) -> None:
    group = [attempt(record) for record in group_of("g", 2, versions=(1, 4))]
    tokens = [int(v) for a in group for v in a.sequences[0].versions]
    figures = Trainer(folder, config()).update(1, [group], version=5)
    assert figures["staleness_max"] == 4.0
    assert figures["staleness_mean"] == pytest.approx(5 - sum(tokens) / len(tokens))
    assert figures["tokens"] == len(tokens)


def test_learning_rate_rises_then_falls() -> None:
    plan = LearnerSettings(preset="tiny", learning_rate=1.0, warmup_updates=4, decay_updates=10)
    assert [learning_rate(plan, n) for n in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert learning_rate(plan, 9) == pytest.approx(0.55)
    assert learning_rate(plan, 14) == learning_rate(plan, 1000) == pytest.approx(0.1)
    assert learning_rate(LearnerSettings(preset="tiny", learning_rate=1.0, warmup_updates=0), 1) == 1.0


def test_learning_rate_falls_along_a_cosine_to_its_final_share() -> None:
    plan = LearnerSettings(learning_rate=1.0, warmup_updates=2, decay_updates=8, decay_shape="cosine", final_rate=0.2)
    assert [learning_rate(plan, n) for n in (1, 2)] == [0.5, 1.0]
    assert learning_rate(plan, 4) == pytest.approx(0.2 + 0.8 * (1 + 2**-0.5) / 2)
    assert learning_rate(plan, 6) == pytest.approx(0.6)
    assert learning_rate(plan, 10) == learning_rate(plan, 99) == pytest.approx(0.2)


def test_models_with_unknown_logit_transformations_are_rejected(tmp_path: Path) -> None:
    """This one's configuration asks for a cap, of which its code knows nothing."""
    folder = tiny_model(tmp_path / "model")
    model_config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(model_config | {"final_logit_softcapping": 0.01}))
    with pytest.raises(CannotTrain, match="LlamaForCausalLM transforms its logits by more than scale and cap"):
        Trainer(folder, config())
