"""Check that an attempt counts once, in any number of training sequences and forward passes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from labelled_records import attempt, group_of, tiny_model

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.training.trainer import Trainer

COUPLED = {"loss_proximal": "behaviour", "loss_weight": "none"}
BY_ATTEMPT: dict[str, dict[str, Any]] = {
    "mean of means": {"advantage": "grpo"},
    "mean over tokens": {"advantage": "rloo"},
    "sum": {"advantage": "dr_grpo"},
    "gspo": {"loss_ratio": "sequence", "clip_low": 0.02, "clip_high": 0.02, "advantage": "grpo"},
    "gspo near the root": {"loss_ratio": "sequence", "kl_weight": 0.1},
    "weight of a sequence": {"loss_weight": "icepop", "loss_weight_level": "sequence", "weight_low": 0.9},
    "opsm": {"loss_masks": ["opsm"], "opsm_bound": 0.01},
    "veto": {"loss_masks": ["veto"], "veto_floor": 0.1},
}
"""Settings whose result differs if a training sequence counts as a response."""
BY_MINIBATCH: dict[str, dict[str, Any]] = {
    "m2po of areal": {"loss_weight": "m2po", "m2po_budget": 0.2},
    "m2po of its authors": {"loss_clip": "m2po", "clip_low": 0.01, "clip_high": 0.01, **COUPLED},
}
FIGURES = ("loss", "grad_norm", "clip_share", "rejected_share", "cap_share", "kl", "entropy", "effective_share")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def groups() -> list[list[Attempt]]:
    """Of attempts of three steps."""
    return [[attempt(record) for record in group_of(f"g{n}", 4, versions=(0, 1, 1))] for n in range(2)]


def cut(original: Attempt, every: int) -> Attempt:
    """The same tokens, each predicted from the same ones before it, in one training sequence for so many steps."""
    (tokens,) = original.sequences
    parts = []
    for first in range(0, 3, every):
        span = (tokens.steps >= first) & (tokens.steps < first + every)
        trained = tokens.trained[span]
        ids = tokens.ids[: trained[-1] + 1]
        parts.append(TokenSequence(ids, trained, tokens.logprobs[span], tokens.versions[span], tokens.steps[span]))
    return replace(original, sequences=tuple(parts))


def edited() -> list[list[Attempt]]:
    """The same attempts, every other one of which was edited: into two training sequences, or three."""
    return [[cut(each, 1 + n // 2) if n % 2 else each for n, each in enumerate(group)] for group in groups()]


def update(folder: Path, given: list[list[Attempt]], microbatch_tokens: int, **choice: Any) -> dict[str, float]:
    config = LearnerSettings(
        preset="tiny",
        warmup_updates=0,
        learning_rate=0.01,
        minibatches=2,
        microbatch_tokens=microbatch_tokens,
        **choice,
    )
    found = Trainer(folder, config, root=folder).update(1, given, version=1)
    return {name: found[name] for name in FIGURES}


@pytest.mark.parametrize("name", BY_ATTEMPT | BY_MINIBATCH)
def test_the_split_of_an_attempt_into_sequences_does_not_matter(folder: Path, name: str) -> None:
    choice = (BY_ATTEMPT | BY_MINIBATCH)[name]
    expected = update(folder, groups(), 100_000, **choice)
    assert expected["grad_norm"] > 1e-3
    if name not in ("mean of means", "mean over tokens", "sum", "gspo near the root"):
        assert expected["clip_share"] + expected["rejected_share"] > 0
    for most in (100_000, 1):
        assert update(folder, edited(), most, **choice) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", BY_MINIBATCH)
def test_m2po_has_one_budget_for_a_minibatch(folder: Path, name: str) -> None:
    expected = update(folder, groups(), 100_000, **BY_MINIBATCH[name])
    assert expected["clip_share"] + expected["rejected_share"] > 0
    assert update(folder, groups(), 1, **BY_MINIBATCH[name]) == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_only_objectives_beyond_one_forward_pass_need_a_first_pass(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    real = Trainer._first_pass

    def noted(*given: Any) -> Any:
        passes.append(1)
        return real(*given)

    monkeypatch.setattr(Trainer, "_first_pass", noted)
    for given, most, choice in (
        (groups(), 1, BY_ATTEMPT["gspo"]),
        (edited(), 100_000, BY_ATTEMPT["gspo"]),
        (edited(), 1, {"loss_ratio": "step", "loss_weight_level": "step"}),
        (groups(), 100_000, BY_MINIBATCH["m2po of areal"]),
    ):
        update(folder, given, most, **choice)
    assert not passes
    update(folder, edited(), 1, **BY_ATTEMPT["gspo"])
    assert len(passes) == 2


def test_the_rows_of_an_attempt_are_in_one_gradient_step(folder: Path) -> None:
    trainer = Trainer(folder, LearnerSettings(preset="tiny", minibatches=3))
    given = edited()
    owners = [n for n, each in enumerate(each for group in given for each in group) for _ in each.sequences]
    for number in range(8):
        parts = trainer._minibatches(given, number)
        assert sorted(row for part in parts for row in part) == list(range(len(owners)))
        together = [owner for part in parts for owner in {owners[row] for row in part}]
        assert sorted(together) == sorted(set(owners))
