"""The command line of Java: class path, heap and AOT cache. No test starts Java."""

from pathlib import Path

import pytest

from stepstream.config import Settings, load
from stepstream.embedded import java


def settings(tmp_path: Path, **variables: str) -> Settings:
    paths = {"STEPSTREAM_PATHS_DATA": str(tmp_path / "data"), "STEPSTREAM_BROKER_HOME": str(tmp_path / "home")}
    return load(environment=paths | variables)


def test_the_command_uses_the_aot_cache_only_if_it_exists(tmp_path: Path) -> None:
    config = settings(tmp_path, STEPSTREAM_BROKER_HEAP_MB="300")
    command = java.command(config, java.MAIN, "file")
    assert command[-2:] == ["kafka.Kafka", "file"]
    assert "-Xmx300m" in command
    assert not any("AOTCache" in word for word in command)

    cache = java.aot_cache(java.home(config))
    cache.parent.mkdir(parents=True)
    cache.touch()
    assert f"-XX:AOTCache={cache}" in java.command(config, java.MAIN, "file")


def test_the_optimizing_compiler_is_a_setting_and_uses_the_same_cache(tmp_path: Path) -> None:
    usual, optimizing = settings(tmp_path), settings(tmp_path, STEPSTREAM_BROKER_OPTIMIZING_COMPILER="true")
    cache = java.aot_cache(java.home(usual))
    cache.parent.mkdir(parents=True)
    cache.touch()
    flag = "-XX:TieredStopAtLevel=1"
    assert flag in java.command(usual, java.MAIN)
    assert java.command(optimizing, java.MAIN) == [word for word in java.command(usual, java.MAIN) if word != flag]
    assert f"-XX:AOTCache={cache}" in java.command(optimizing, java.MAIN)


def test_the_class_path_holds_every_locked_jar(tmp_path: Path) -> None:
    command = java.command(settings(tmp_path), java.MAIN)
    path = command[command.index("-cp") + 1].split(":")
    assert len(path) == 46
    assert path == sorted(path)


def test_the_jars_are_in_the_users_cache_folder_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert java.home(Settings()) == tmp_path / "stepstream" / "kafka-4.3.1"
    assert java.home(settings(tmp_path)) == tmp_path / "home"
