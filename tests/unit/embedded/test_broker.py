"""The broker's configuration follows the settings. No test starts Java."""

from pathlib import Path

import pytest

from stepstream.config import Settings, load
from stepstream.embedded import broker
from stepstream.embedded.errors import StackError


def settings(tmp_path: Path, **variables: str) -> Settings:
    paths = {"STEPSTREAM_PATHS_DATA": str(tmp_path / "data"), "STEPSTREAM_BROKER_HOME": str(tmp_path / "home")}
    return load(environment=paths | variables)


def test_configuration_follows_the_settings(tmp_path: Path) -> None:
    configured = broker.properties(
        settings(tmp_path, STEPSTREAM_BROKER_PORT="19092", STEPSTREAM_BROKER_CONTROLLER_PORT="19093")
    )
    assert configured["advertised.listeners"] == "PLAINTEXT://127.0.0.1:19092"
    assert configured["listeners"] == "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093"
    assert configured["controller.quorum.voters"] == "1@127.0.0.1:19093"
    assert configured["log.dirs"] == str(tmp_path / "data" / "kafka")
    assert configured["auto.create.topics.enable"] == "false"


def test_heartbeats_are_sent_well_within_the_session(tmp_path: Path) -> None:
    configured = broker.properties(settings(tmp_path))
    assert 4 * int(configured["broker.heartbeat.interval.ms"]) <= int(configured["broker.session.timeout.ms"])


def test_the_error_for_missing_jars_names_the_install_command(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="run `stepstream install`"):
        broker.prepare(settings(tmp_path))
