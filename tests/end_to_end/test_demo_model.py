"""Let SmolLM2 learn behind vLLM for one update, by the commands of the tutorial: a swap and a canary under load."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import pytest
from stack_fixtures import with_long_deadlines, with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, environment_of
from stepstream.demo.configuration import demo_settings
from stepstream.demo.run_stats import RunStats
from stepstream.embedded.addresses import isolated

pytestmark = [pytest.mark.vllm, pytest.mark.repeats]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
(START,) = re.findall(r"```console\n(.*?)\n```", PAGE, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]
AGENT = ".venv/bin/python examples/python/house_agent.py"
TASKS = 4


@pytest.fixture(scope="module")
def settings(
    base_settings: Settings, smollm2_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """Settings of the tutorial's stack, which runs."""
    profile_of_demo = demo_settings("demo-model")
    small = with_settings(
        isolated(with_long_deadlines(profile_of_demo), tmp_path_factory.mktemp("model")),
        stack={"base_model": str(smollm2_model)},
        broker={"home": base_settings.broker.home},
        learner={"groups_per_update": 1},
    )
    log = small.paths.data / "up.log"
    with log.open("wb") as sink, stack_of_the_tutorial(profile_of_demo, small, sink) as stack:

        def is_up() -> bool:
            assert stack.poll() is None, log.read_text()
            return "Ctrl-C stops everything" in log.read_text()

        wait_until(is_up, log.read_text, small.stack.start_deadline_s)
        yield small
    assert stack.returncode == 0, log.read_text()


@contextmanager
def stack_of_the_tutorial(profile: Settings, own: Settings, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command that starts the tutorial's stack, with variables for what differs from its profile."""
    assignment, *words = START.split()
    variable, file = assignment.split("=")
    changed = dict(environment_of(own).items() - environment_of(profile).items())
    environment = {**os.environ, **changed, variable: file}
    command = command_line(" ".join(words), own)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT_S)


def command_line(command: str, settings: Settings) -> list[str]:
    """Return the words of a tutorial's command with this interpreter, this gateway and few tasks."""
    words = command.replace("--tasks 100", f"--tasks {TASKS}").split()
    if words[0] == ".venv/bin/stepstream":
        return [sys.executable, "-m", "stepstream.cli.main", *words[1:]]
    assert words[0] == ".venv/bin/python"
    return [sys.executable, *words[1:], "--url", settings.fleet.gateway_url]


def run(command: str, settings: Settings) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment_of(settings)}
    words = command_line(command, settings)
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def succeeds(command: str, settings: Settings) -> bool:
    return run(command, settings).returncode == 0


def succeed(command: str, settings: Settings) -> str:
    done = run(command, settings)
    assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
    return done.stdout


@contextmanager
def background(command: str, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*command_line(command, settings), "--concurrency", "16"], cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def test_the_tutorial_names_commands_of_each_kind() -> None:
    assert COMMANDS[0] == "make demo-model"
    assert START.endswith(".venv/bin/stepstream up")
    assert COMMANDS[1].startswith(f"{AGENT} --split eval")
    assert COMMANDS[2] == AGENT
    assert {"promote", "canary", "rollback", "follow"} <= {line.split()[2] for line in COMMANDS[3:]}


def test_a_version_is_learnt_and_served_under_load(settings: Settings) -> None:
    evaluate, work, *manage = COMMANDS[1:]
    result = json.loads(succeed(evaluate, settings).splitlines()[-1])
    assert result["attempts"] == TASKS
    assert result["succeeded"] <= TASKS

    with closing(RunStats(settings, 0, 0)) as stats:
        with background(work, settings) as agent:

            def while_it_runs(condition: Callable[[], bool]) -> bool:
                assert agent.poll() is None, "the agent ended"
                return condition()

            wait_until(lambda: while_it_runs(lambda: stats.swaps() >= 1), "a trajectory of version 1")
            for command in manage:
                if " status " in command:  # the learner may publish, and the worker swap, at any time
                    wait_until(partial(succeeds, command, settings), command)
                else:
                    succeed(command, settings)
                if " canary " in command:
                    wait_until(lambda: while_it_runs(lambda: stats.trajectories_on("canary") > 0), "a canary's work")
                    assert tracks(settings) == {"stable": 0, "canary": 1}
        assert stats.failed_requests() == 0
        kept, continued = stats.prefix_kept()
        assert kept >= 0.99 or continued < 10


def tracks(settings: Settings) -> dict[str, int]:
    """Return the versions that the only worker serves, by track."""
    done = run(".venv/bin/stepstream models status house --json", settings)
    (worker,) = json.loads(done.stdout)["workers"]
    return dict(worker["tracks"])
