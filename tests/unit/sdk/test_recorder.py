"""The recorder starts, switches off, survives forks and delivers at exit."""

import os
import subprocess
import sys

import pytest
from waiting import TIMEOUT_S

from stepstream import sdk
from stepstream.config import load

QUESTION = {"role": "user", "content": "what is a + c?"}


@sdk.tool
def get(name: str) -> int:
    return {"a": 4}[name]


PROCESSES = """
import importlib, multiprocessing, os
from stepstream import sdk
from stepstream.config import Settings

class PrintingSink(sdk.MemorySink):
    def close(self, timeout_s):
        kind = "parent" if os.getpid() == first else "child"
        events = [f"{topic}:{record.get('name', 'step')}" for topic, _, record in self.events]
        os.write(1, f"{kind} {' '.join(events)}\\n".encode())

first = os.getpid()
importlib.import_module("stepstream.sdk.recorder").Recorder._connect = lambda recorder: PrintingSink()

@sdk.tool
def look():
    pass

def work():
    with sdk.trajectory(), sdk.current().step(["x"]):
        look()

def in_child(function):
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join()

in_child(work)
with sdk.trajectory(), sdk.current().step(["x"]):
    in_child(look)
"""


@pytest.mark.parametrize("switch", ["setting", "argument"])
def test_a_disabled_sdk_records_nothing(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if switch == "setting":
        monkeypatch.setenv("STEPSTREAM_SDK_ENABLED", "false")
        sdk.configure()
    else:
        sdk.configure(enabled=False)
    try:

        @sdk.trajectory("x")
        def work() -> int:
            t = sdk.current()
            with t.step([QUESTION]) as s, t.sub_agent() as child:
                s.response("x")
                assert s.headers() == t.headers() == child.headers() == {}
                s.tool_call("x", 1)
                child.reward("y", 1)
                s.reward("y", 1)
                s.end()
            t.end()
            return get("a")

        assert work() == 4
        assert sdk.recorder() is None
        assert sdk.flush() == 0
        sdk.feedback("t", "x", 1.0)
    finally:
        sdk.close()


def test_invalid_settings_switch_the_sdk_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("STEPSTREAM_SDK_MEMORY_MB", "lots")
    sdk.configure()
    with sdk.trajectory() as t:
        assert not t.is_recorded
    assert "nothing is recorded: settings" in caplog.text
    sdk.close()


def test_the_spool_is_set_by_the_environment() -> None:
    assert load({"STEPSTREAM_SDK_SPOOL": "x"}).sdk.spool is not None


def test_a_disabled_sdk_imports_no_heavy_package() -> None:
    code = (
        "import sys\nfrom stepstream import sdk\n"
        "with sdk.trajectory() as t, t.step(['x']) as s:\n    s.response('y')\n"
        "heavy = {'torch', 'faust', 'confluent_kafka', 'fastavro', 'pydantic', 'asyncio'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    off = os.environ | {"STEPSTREAM_SDK_ENABLED": "false"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=off, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    assert run.stdout.split() == []


def test_without_kafka_the_process_exits_and_logs_dropped_events() -> None:
    code = (
        "import logging\nlogging.basicConfig()\n"
        "from stepstream import sdk\n"
        "with sdk.trajectory() as t, t.step(['x']) as s:\n    s.response('y')\n"
    )
    env = {
        **os.environ,
        "STEPSTREAM_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "STEPSTREAM_SCHEMA_REGISTRY_URL": "http://127.0.0.1:1",
        "STEPSTREAM_SDK_FLUSH_S": "0.2",
    }
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0
    assert "dropped 2 events" in ended.stderr


def test_a_forked_child_has_a_new_recorder(sink: sdk.MemorySink) -> None:
    with sdk.trajectory():
        pass
    code = (
        "import os\n"
        "from stepstream import sdk\n"
        "from stepstream.config import Settings\n"
        "sink = sdk.MemorySink(); sdk.configure(Settings(), sink=sink)\n"
        "parent = sdk.recorder()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sdk.configure(Settings(), sink=sdk.MemorySink())\n"
        "    ok = sdk.recorder() is not parent\n"
        "    os._exit(0 if ok else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert sdk.recorder() is parent\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S)


def test_forked_processes_deliver_their_own_events() -> None:
    """Children of `multiprocessing` run no `atexit` functions and lack the parent's threads."""
    run = subprocess.run([sys.executable, "-c", PROCESSES], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert run.stderr == ""
    assert run.stdout.splitlines() == [
        "child steps:step feedback:end",
        "child feedback:tool",
        "parent steps:step feedback:end",
    ]
