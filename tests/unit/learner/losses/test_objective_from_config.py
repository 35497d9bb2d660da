"""Check that every choice of the settings trains, and that contradicting choices are rejected with advice."""

from pathlib import Path
from typing import Any

import pytest
from labelled_records import attempt, group_of, tiny_model
from pydantic import ValidationError

from stepstream.config import LearnerSettings
from stepstream.learner.losses import Banded, Objective, OffPolicySequences, Ppo, Sapo, Truncated, Unweighted, Veto
from stepstream.learner.losses.from_config import objective_of
from stepstream.learner.training.trainer import Trainer

COUPLED = {"loss_proximal": "behaviour", "loss_weight": "none"}
CHOICES: list[dict[str, Any]] = [
    {"loss_ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    {"loss_ratio": "step", "loss_weight_level": "step"},
    {"loss_weight": "icepop"},
    {"loss_weight": "kpop"},
    {"loss_weight": "m2po"},
    {"loss_weight": "none"},
    {"loss_clip": "cispo"},
    {"loss_clip": "sapo", **COUPLED},
    {"loss_clip": "m2po", **COUPLED},
    {"loss_proximal": "interpolated"},
    {"loss_masks": ["opsm", "veto"]},
    {"entropy_bonus": 0.01},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def figures(folder: Path, **choice: Any) -> dict[str, float]:
    groups = [[attempt(record) for record in group_of(f"g{n}", 4, versions=(0, 2))] for n in range(2)]
    return Trainer(folder, LearnerSettings(preset="tiny", warmup_updates=0, **choice)).update(1, groups, version=3)


def test_the_default_is_the_decoupled_truncated_objective() -> None:
    assert objective_of(LearnerSettings(preset="tiny")) == Objective(weight=Truncated(2.0), clip=Ppo(0.2, 0.28, 3.0))


def test_settings_reach_the_objective() -> None:
    config = LearnerSettings(
        preset="tiny",
        loss_ratio="step",
        loss_weight="icepop",
        weight_low=0.7,
        weight_high=2.0,
        loss_masks=["veto", "opsm"],
        veto_floor=0.01,
        opsm_bound=0.1,
        entropy_bonus=0.5,
    )
    assert objective_of(config) == Objective(
        ratio="step",
        weight=Banded(0.7, 2.0),
        clip=Ppo(0.2, 0.28, 3.0),
        masks=(Veto(0.01), OffPolicySequences(0.1)),
        entropy=0.5,
    )
    soft = objective_of(
        LearnerSettings.model_validate({"preset": "tiny", "loss_clip": "sapo", "sapo_negative": 1.2, **COUPLED})
    )
    assert soft == Objective(proximal="behaviour", weight=Unweighted(), clip=Sapo(1.0, 1.2))


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "-".join(map(str, choice.values())))
def test_every_choice_trains_and_none_is_the_default(folder: Path, choice: dict[str, Any]) -> None:
    default, chosen = figures(folder), figures(folder, **choice)
    assert chosen["steps_skipped"] == 0.0
    assert chosen["grad_norm"] > 0.0
    assert chosen["loss"] != default["loss"]
    assert chosen["tokens"] == default["tokens"]


def test_figures_of_staleness(folder: Path) -> None:
    found = figures(folder, loss_weight="icepop")
    assert 0.0 < found["staleness_share_1"] < 1.0
    assert found["staleness_share_1"] + found["staleness_share_4"] == pytest.approx(1.0)
    assert found["staleness_share_0"] == found["staleness_share_more"] == 0.0
    assert 0.0 < found["rejected_share"] < 1.0
    assert figures(folder)["rejected_share"] == 0.0


@pytest.mark.parametrize(
    ("choice", "advice"),
    [
        ({"loss_clip": "sapo"}, "loss_proximal=behaviour and loss_weight=none"),
        ({"loss_clip": "m2po", "loss_weight": "none"}, "loss_proximal=behaviour"),
        ({"loss_proximal": "behaviour"}, "set loss_weight=none"),
        ({"loss_masks": ["veto"], **COUPLED}, "use opsm"),
        ({"loss_weight": "none", "loss_weight_level": "sequence"}, "set loss_weight_level=token"),
        ({"loss_weight": "kpop", "loss_weight_level": "step"}, "set loss_weight_level=token"),
        ({"weight_low": 1.5}, "rejects fresh data"),
        ({"advantage": "vtrace"}, "set loss_weight=none and loss_proximal=forward"),
        ({"advantage": "vtrace", **COUPLED}, "set loss_weight=none and loss_proximal=forward"),
        ({"group_size": 1}, "set group_size=2 or more"),
    ],
)
def test_contradictions_are_rejected(choice: dict[str, Any], advice: str) -> None:
    with pytest.raises(ValidationError, match=advice):
        LearnerSettings.model_validate(choice)
