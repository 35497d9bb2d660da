"""Test the presets of the learner: precedence, stability of old versions and names."""

import pytest

from stepstream.config import LearnerSettings, load
from stepstream.config.presets import PRESETS, preset_of
from stepstream.learner.provenance import configuration_of, parse_configuration


def test_presets_name_settings_only() -> None:
    assert all(set(values) <= set(LearnerSettings.model_fields) for values in PRESETS.values())


def test_a_given_value_is_over_the_preset() -> None:
    config = LearnerSettings(preset="tiny", learning_rate=0.5)
    assert (config.learning_rate, config.loss_length) == (0.5, 64)


@pytest.mark.parametrize(
    ("variables", "preset", "rate"),
    [
        ({}, "full", 1e-6),
        ({"LORA_RANK": "8"}, "lora", 1e-5),
        ({"PRESET": "tiny"}, "tiny", 3e-4),
        ({"PRESET": "tiny", "LORA_RANK": "8"}, "tiny", 3e-4),
        ({"PRESET": "lora", "LEARNING_RATE": "2e-5"}, "lora", 2e-5),
    ],
)
def test_variables_choose_the_preset(variables: dict[str, str], preset: str, rate: float) -> None:
    config = load({f"STEPSTREAM_LEARNER_{name}": value for name, value in variables.items()}).learner
    assert config.learning_rate == rate
    assert preset_of({name.lower(): value for name, value in variables.items()}) == preset
    assert bool(config.lora_rank) == (preset == "lora" or "LORA_RANK" in variables)


def test_the_values_of_a_version_from_before_presets_are_those_of_tiny() -> None:
    before = '{"learner": {"learning_rate": 0.1, "lora_rank": 4, "gone": 1}, "arithmetic": {}}'
    config = parse_configuration(before)[0]
    assert (config.learning_rate, config.lora_rank, config.lora_alpha) == (0.1, 4, 16.0)
    assert (config.weight_decay, config.adam_beta2, config.optimizer, config.decay_shape) == (
        0.0, 0.95, "adamw", "linear",
    )  # fmt: skip


def test_the_settings_of_a_version_are_read_as_they_were() -> None:
    for preset in PRESETS:
        config = LearnerSettings.model_validate({"preset": preset, "weight_decay": 0.3})
        assert parse_configuration(configuration_of(config))[0] == config


def test_contradicting_optimizers_are_rejected() -> None:
    with pytest.raises(ValueError, match="needs a GPU"):
        LearnerSettings(optimizer="adamw_8bit")
    with pytest.raises(ValueError, match="steps in host memory"):
        LearnerSettings(optimizer="adamw_8bit", optimizer_offload=True, device="cuda")
