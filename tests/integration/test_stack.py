"""Test the stack and `stepstream up` with a real broker and registry: order, start errors, external parts, stopping."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from stack_fixtures import with_settings
from waiting import TIMEOUT_S

from stepstream.cli.doctor_services import broker, registry
from stepstream.config import Settings, environment_of
from stepstream.embedded.addresses import isolated
from stepstream.embedded.errors import StackError
from stepstream.embedded.stack import Event, Stack


def test_parts_start_and_stop_in_order(base_settings: Settings, tmp_path: Path) -> None:
    events: list[Event] = []
    with Stack(isolated(base_settings, tmp_path), ["registry", "broker"], events.append) as stack:
        assert broker(stack.settings).state == "ok"
        assert registry(stack.settings).state == "ok"
    states = [(event.name, event.state) for event in events]
    assert states == [
        ("broker", "starting"),
        ("broker", "ready"),
        ("registry", "starting"),
        ("registry", "ready"),
        ("topics", "starting"),
        ("topics", "ready"),
        ("registry", "stopping"),
        ("registry", "stopped"),
        ("broker", "stopping"),
        ("broker", "stopped"),
    ]


def test_a_port_in_use_stops_the_start_before_any_process(base_settings: Settings, tmp_path: Path) -> None:
    settings = isolated(base_settings, tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", settings.broker.port))
        other.listen()
        stack = Stack(settings, ["broker"])
        with pytest.raises(StackError, match=r"port \d+ \(broker\) is taken .*set STEPSTREAM_BROKER_PORT"):
            stack.start()
        assert not stack.members()


def test_the_error_names_an_external_part_that_does_not_answer(base_settings: Settings, tmp_path: Path) -> None:
    settings = isolated(base_settings, tmp_path)
    settings = with_settings(settings, kafka={"bootstrap": "127.0.0.1:1"}, stack={"start_deadline_s": 0.5})
    stack = Stack(settings, ["broker"])
    with pytest.raises(
        StackError, match=r"broker runs elsewhere and does not answer at 127\.0\.0\.1:1: .*KAFKA_BOOTSTRAP"
    ):
        stack.start()


def test_a_process_can_be_deferred_restarted_and_stopped(
    base_settings: Settings, broker_settings: Settings, tmp_path: Path
) -> None:
    settings = with_settings(isolated(base_settings, tmp_path), kafka={"bootstrap": broker_settings.kafka.bootstrap})
    events: list[Event] = []
    with Stack(settings, ["broker", "registry"], events.append, deferred=["registry"]) as stack:
        assert stack.pid("registry") == 0
        with pytest.raises(StackError, match="a stack already runs over"):
            Stack(settings, ["broker", "registry"]).start()
        first = stack.start_process("registry")
        second = stack.restart("registry")
        assert second != first
        stack.poll()
        assert not [event for event in events if event.state == "restarted"]  # neither stop was a crash
        stack.stop_process("registry")
        assert stack.pid("registry") == 0


def test_up_goes_on_beside_a_failed_job_until_ctrl_c_and_ends_all_processes(
    base_settings: Settings, tmp_path: Path
) -> None:
    settings = with_settings(isolated(base_settings, tmp_path), verify={"file": tmp_path / "missing.toml"})
    environment = {**os.environ, **environment_of(settings), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "stepstream.cli.main", "up", "--only", "broker", "--only", "verify"]
    up = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert up.stdout is not None
    try:
        lines = []
        for line in up.stdout:
            lines.append(line)
            if line.startswith("verify         failed"):
                break
        assert f"broker         {settings.kafka.bootstrap}\n" in lines
        assert "missing.toml" in lines[-1]
        with urllib.request.urlopen(f"http://127.0.0.1:{settings.stack.metrics_port}/metrics") as answer:
            metrics = answer.read().decode()
        assert 'stepstream_stack_failures_total{process="verify"} 1.0' in metrics
        assert 'stepstream_stack_process_up{process="broker"} 1.0' in metrics
        children = psutil.Process(up.pid).children(recursive=True)
        assert len(children) == 2
        up.send_signal(signal.SIGINT)
        rest = up.stdout.read()
        assert up.wait(TIMEOUT_S) == 0, rest
        assert "stopped; the data stays" in rest
        assert not [child for child in children if child.is_running()]
    finally:
        up.kill()
        up.wait()
        up.stdout.close()
