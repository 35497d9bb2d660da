"""Settings load from environment over file over defaults; errors name the setting; secrets stay masked."""

from pathlib import Path

import pytest

from stepstream.config import (
    Settings,
    SettingsError,
    effective,
    environment_of,
    load,
    load_with_origins,
    masked,
    unknown_variables,
)


def test_environment_overrides_file_overrides_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[kafka]\nbootstrap = "file:1"\nreplication = 3\n')
    settings, origins = load_with_origins({"STEPSTREAM_KAFKA_BOOTSTRAP": "env:1"}, file)
    assert settings.kafka.bootstrap == "env:1"
    assert settings.kafka.replication == 3
    values = {value.name: value for value in effective(settings, origins)}
    assert values["kafka.bootstrap"].origin == "STEPSTREAM_KAFKA_BOOTSTRAP"
    assert values["kafka.replication"].origin == str(file)
    assert values["kafka.sasl_mechanism"].origin == "default"


def test_lists_are_separated_by_commas() -> None:
    assert load({"STEPSTREAM_GATEWAY_UPSTREAMS": "http://a, http://b"}).gateway.upstreams == ["http://a", "http://b"]


def test_secrets_are_masked_but_reach_child_processes() -> None:
    settings, origins = load_with_origins({"STEPSTREAM_KAFKA_SASL_PASSWORD": "hunter2"})
    assert "hunter2" not in str(effective(settings, origins))
    assert "hunter2" not in repr(settings)
    assert load(environment_of(settings)) == settings
    assert environment_of(settings)["STEPSTREAM_KAFKA_SASL_PASSWORD"] == "hunter2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[kafka]\nbootstarp = 'x'\n", r"kafka\.bootstarp: there is no such setting: did you mean kafka\.bootstrap\?"),
        ("[kafak]\nbootstrap = 'x'\n", r"kafak: there is no such section: did you mean kafka\?"),
        ("[broker]\nport = 70000\n", "broker.port"),
        ("[clickhouse]\nurl = 'localhost:8123'\n", "clickhouse.url: not an HTTP address"),
        ("[[gateway.providers]]\nname = 'a'\nmodels = ['m']\n", r"gateway\.providers\[0\]\.base_url: Field required"),
        ("kafka = 3\n", "'kafka' must be a table"),
        ("[kafka\n", "is not TOML"),
        ("[kafka]\nreplication = 0\n", "kafka.replication"),
        ("[inference]\nlora_rank = 8\n", "inference: the torch engine has no lora_rank: unset, or set engine to vllm"),
    ],
)
def test_errors_name_the_setting(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        load({}, file)


def test_an_error_from_the_environment_names_the_variable() -> None:
    with pytest.raises(SettingsError, match="STEPSTREAM_BROKER_PORT"):
        load({"STEPSTREAM_BROKER_PORT": "many"})


def test_an_error_names_a_missing_file() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load({"STEPSTREAM_CONFIG": "nowhere.toml"})


def test_an_unreadable_file_raises(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        load({}, tmp_path)
    (tmp_path / "settings.toml").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="is not TOML"):
        load({}, tmp_path / "settings.toml")


def test_a_misspelled_variable_raises() -> None:
    with pytest.raises(SettingsError, match=r"STEPSTREAM_SEAL_MASTERKEY .* did you mean STEPSTREAM_SEAL_MASTER_KEY"):
        load({"STEPSTREAM_SEAL_MASTERKEY": "hunter2"})
    others = {"STEPSTREAM_GATEWAY_SERVICE_HOST": "10.0.0.1", "STEPSTREAM_STACK_OWNER": "1"}
    assert load(others) == Settings()
    assert unknown_variables(others) == sorted(others)
    assert unknown_variables(environment_of(Settings())) == []


def test_an_empty_variable_sets_only_texts_and_lists() -> None:
    empty = dict.fromkeys(("STEPSTREAM_PATHS_DATA", "STEPSTREAM_BROKER_HOME", "STEPSTREAM_BROKER_PORT"), "")
    assert load(empty) == Settings()
    assert load({"STEPSTREAM_CLICKHOUSE_USER": "", "STEPSTREAM_STACK_MORE": ""}).clickhouse.user == ""


def test_passwords_in_addresses_are_masked() -> None:
    settings, origins = load_with_origins({"STEPSTREAM_SCHEMA_REGISTRY_URL": "https://u:hunter2@a,https://u:hunter2@b"})
    assert "hunter2" not in str(effective(settings, origins))
    assert load(environment_of(settings)) == settings
    assert masked("asked http://u:p@h/x, http://h:1/a@b") == "asked http://********@h/x, http://h:1/a@b"


@pytest.mark.parametrize("profile", ["demo", "demo-control", "demo-model", "trail"])
def test_a_name_without_a_dot_is_a_profile(profile: str) -> None:
    settings, origins = load_with_origins({"STEPSTREAM_CONFIG": profile})
    assert settings.stack.base_model
    assert origins["stack", "base_model"].endswith(f"profiles/{profile}.toml")


def test_an_unknown_profile_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        SettingsError,
        match=r"no profile 'dem': name a file, as \./dem, or one of demo, demo-control, demo-model, trail",
    ):
        load({"STEPSTREAM_CONFIG": "dem"})


def test_without_a_profile_nothing_of_the_demo_is_configured() -> None:
    settings = load({"STEPSTREAM_KAFKA_BOOTSTRAP": "kafka:9092"})
    assert settings.stack.base_model == ""
    assert settings.stack.more == []
