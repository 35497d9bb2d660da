"""Test the wheel in an empty environment outside the checkout: it contains the whole package."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def stepstream(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment with only the wheel and its core dependencies."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    python = folder / "bin" / "python"
    constraints = ROOT / "requirements" / "demo.txt"
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run([*install, "--constraint", constraints, wheel], check=True)
    return folder / "bin" / "stepstream"


def test_the_wheel_contains_its_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for pattern in (
        "stepstream/schemas/Step.avsc",
        "stepstream/jobs/clickhouse/migrations/0001_events.sql",
        "stepstream/services/console/static/index.html",
        "stepstream/embedded/jars.lock",
        "stepstream/config/profiles/demo.toml",
    ):
        assert pattern in names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "bench/"))]


def test_help_needs_only_the_core(stepstream: Path, tmp_path: Path) -> None:
    done = subprocess.run([stepstream, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "demo" in done.stdout


def test_config_shows_every_setting_and_no_secret(stepstream: Path, tmp_path: Path) -> None:
    env = {"STEPSTREAM_KAFKA_SASL_PASSWORD": "hunter2", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [stepstream, "config", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert "hunter2" not in done.stdout
    assert "kafka.bootstrap" in json.dumps(json.loads(done.stdout))


def test_doctor_names_the_setting_of_an_unreachable_part(stepstream: Path, tmp_path: Path) -> None:
    env = {
        "PATH": "/usr/bin:/bin",
        "STEPSTREAM_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "STEPSTREAM_SCHEMA_REGISTRY_URL": "http://127.0.0.1:1",
        "STEPSTREAM_CLICKHOUSE_URL": "http://127.0.0.1:1",
    }
    done = subprocess.run([stepstream, "doctor"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "STEPSTREAM_KAFKA_BOOTSTRAP" in done.stdout + done.stderr
