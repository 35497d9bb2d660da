"""Settings: environment over file over defaults, every fault named, no secret shown."""

from pathlib import Path

import pytest

from stepstream.config import SettingsError, effective, environment_of, load, load_with_origins
from stepstream.config.sections import Settings


def test_environment_wins_over_file_wins_over_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[kafka]\nbootstrap = "file:1"\nreplication = 3\n')
    settings, origins = load_with_origins({"STEPSTREAM_KAFKA_BOOTSTRAP": "env:1"}, file)
    assert settings.kafka.bootstrap == "env:1"
    assert settings.kafka.replication == 3
    shown = {value.name: value for value in effective(settings, origins)}
    assert shown["kafka.bootstrap"].origin == "STEPSTREAM_KAFKA_BOOTSTRAP"
    assert shown["kafka.replication"].origin == str(file)
    assert shown["kafka.sasl_mechanism"].origin == "default"


def test_lists_come_from_commas() -> None:
    assert load({"STEPSTREAM_GATEWAY_UPSTREAMS": "http://a, http://b"}).gateway.upstreams == ["http://a", "http://b"]


def test_secrets_are_masked_and_still_reach_child_processes() -> None:
    settings, origins = load_with_origins({"STEPSTREAM_KAFKA_SASL_PASSWORD": "hunter2"})
    assert "hunter2" not in str(effective(settings, origins))
    assert "hunter2" not in repr(settings)
    assert load(environment_of(settings)) == settings
    assert environment_of(settings)["STEPSTREAM_KAFKA_SASL_PASSWORD"] == "hunter2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[kafka]\nbootstarp = 'x'\n", "kafka.bootstarp"),
        ("[kafak]\nbootstrap = 'x'\n", "kafak"),
        ("kafka = 3\n", "'kafka' must be a table"),
        ("[kafka\n", "is not TOML"),
        ("[kafka]\nreplication = 0\n", "kafka.replication"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        load({}, file)


def test_a_fault_from_the_environment_names_the_variable() -> None:
    with pytest.raises(SettingsError, match="STEPSTREAM_BROKER_PORT"):
        load({"STEPSTREAM_BROKER_PORT": "many"})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load({"STEPSTREAM_CONFIG": "nowhere.toml"})


def test_every_setting_has_a_sentence() -> None:
    for section, info in Settings.model_fields.items():
        for name, field in info.annotation.model_fields.items():  # type: ignore[union-attr]
            assert field.description, f"{section}.{name}"
            assert field.description.endswith("."), f"{section}.{name}"
