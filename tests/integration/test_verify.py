"""Test the job `verify` with a real broker: verdicts become feedback, and feedback becomes reward components."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from scripted_judge import reply, serve_function
from stack_fixtures import with_settings
from stack_world import World
from stream_records import make_ending, make_steps
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.verifiers.sandbox import landlock
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import new_message

PROCESSES = ["broker", "registry", "govern", "label", "verify"]
VERIFICATIONS = """
[[verification]]
name = "answer"
verifier = "exact"
extract = "return ([0-9]+)"
expected = "tasks.jsonl"

[[verification]]
name = "tests"
verifier = "unit_tests"
expected = "tasks.jsonl"
options = { memory_mb = 256, seconds = 60.0 }

[[verification]]
name = "quality"
verifier = "judge"
options = { min_items = 20, min_agreement = 0.9 }
"""
SPECIFICATION = """
name = "verified"
[[component]]
name = "answer"
feedback = "answer"
source = "verifier"
outcome = true
[[component]]
name = "tests"
feedback = "tests"
source = "test"
weight = 0.5
[[component]]
name = "quality"
feedback = "quality"
source = "judge"
[[component]]
name = "measured quality"
feedback = "shadow.quality"
shadow = true
"""
TASK = {
    "task_id": "four",
    "expected": "4",
    "tests": "import unittest\nfrom solution import four\n"
    "class Four(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(four(), 4)\n",
}
RIGHT, WRONG = "def four(): return 4", "def four(): return 5"

pytestmark = [
    pytest.mark.skipif(not landlock.version(), reason="needs Landlock: run on Linux 5.13 or later"),
]


def judged(body: Any) -> tuple[int, bytes]:
    """Answer as a judge that scores correct code higher."""
    right = "return 4" in orjson.loads(body["messages"][1]["content"])["response"]
    return 200, reply('{"score": 0.75}' if right else '{"score": 0.25}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    (folder / "verify.toml").write_text(VERIFICATIONS)
    (folder / "reward.toml").write_text(SPECIFICATION)
    (folder / "tasks.jsonl").write_bytes(orjson.dumps(TASK))
    rows = [
        {"id": str(n), "task": "four", "response": (WRONG, RIGHT)[n % 2], "labels": [n % 2, n % 2]} for n in range(30)
    ]
    (folder / "labelled.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    with serve_function(judged) as (url, _):
        settings = with_settings(
            with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("stack"))),
            stack={"more": ["verify"]},
            label={"reward_spec": folder / "reward.toml"},
            judge={"url": url, "model": "scripted", "per_minute": 60_000.0},
            verify={"file": folder / "verify.toml"},
        )
        with Stack(settings, PROCESSES) as running:
            yield running


class Judged(World):
    """A stack with a consumer of its labels and feedback."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._log = EventConsumer(settings.kafka, self.codec)
        self._log.follow(["labeled-trajectories", "feedback"])
        self.labels: dict[str, Any] = {}
        self.feedback: defaultdict[str, list[Any]] = defaultdict(list)

    def close(self) -> None:
        self._log.close()
        super().close()

    def answer(self, name: str, code: str, task_id: str = "four") -> None:
        """Send one trajectory that answers with code."""
        steps = make_steps(name, 2, task_id=task_id, consent="train")
        steps[1]["response"] = new_message(role="assistant", content=code)
        self.send("steps", *steps)
        self.send_and_flush("feedback", make_ending(name, 2))

    def read_new(self) -> None:
        """Read new labels and feedback."""
        for event in self._log.poll(500, 0.1):
            name = event.record["trajectory_id"]
            if event.topic == "feedback":
                self.feedback[name].append(event.record)
            elif name not in self.labels or event.record["revision"] > self.labels[name]["revision"]:
                self.labels[name] = event.record

    def components(self, name: str, *wanted: str) -> dict[str, tuple[float, str]]:
        """Wait until the last step of a label has these components; return (value, source) of each."""
        terms: dict[str, Any] = {}

        def has_all() -> bool:
            self.read_new()
            terms.clear()
            if name in self.labels:
                terms.update({term["name"]: term for term in self.labels[name]["steps"][-1]["components"]})
            return terms.keys() >= set(wanted)

        wait_until(has_all, lambda: f"{name} has {terms}, not {wanted}")
        return {key: (term["value"], term["source"]) for key, term in terms.items()}


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[Judged]:
    with Judged(stack.settings) as opened:
        yield opened


def test_verdicts_become_components_of_the_label(world: Judged) -> None:
    world.answer("right", RIGHT)
    world.answer("wrong", WRONG)
    world.answer("unknown", RIGHT, task_id="another")
    shadow = (0.75, "judge")
    assert world.components("right", "answer", "tests", "measured quality") == {
        "answer": (1.0, "verifier"),
        "tests": (1.0, "test"),
        "measured quality": shadow,
    }
    right = world.labels["right"]
    assert (right["success"], right["reward"], right["trainable"]) == (True, 1.5, True)
    assert world.components("wrong", "answer", "tests", "measured quality") == {
        "answer": (0.0, "verifier"),
        "tests": (0.0, "test"),
        "measured quality": (0.25, "judge"),
    }
    assert world.labels["wrong"]["success"] is False
    assert world.components("unknown", "measured quality") == {"measured quality": shadow}


def test_a_judge_counts_after_its_calibration(world: Judged, folder: Path) -> None:
    assert "judge" in world.run_command("verify", "check", str(folder / "verify.toml"))
    output = world.run_command(
        "verify", "calibrate", str(folder / "verify.toml"), "--set", str(folder / "labelled.jsonl")
    )
    assert "verdicts count" in output
    assert "agreement  1.000" in output
    numbers = itertools.count()
    components: dict[str, tuple[float, str]] = {}

    def is_counted() -> bool:
        """The job reads the calibration later: answer until a verdict counts."""
        name = f"judged-{next(numbers)}"
        world.answer(name, RIGHT)

        def is_judged() -> bool:
            components.clear()
            components.update(world.components(name, "answer", "tests"))
            return bool({"quality", "measured quality"} & components.keys())

        wait_until(is_judged)
        return "quality" in components

    wait_until(is_counted)
    assert components["quality"] == (0.75, "judge")


def test_trajectories_of_a_downtime_are_judged_once(stack: Stack, world: Judged) -> None:
    stack.stop_process("verify")
    world.answer("later", RIGHT)
    stack.start_process("verify")
    world.components("later", "answer", "tests", "quality")
    for name in ("right", "later"):
        names = sorted(event["name"] for event in world.feedback[name] if event["producer"] == "verify/1")
        assert names == sorted(["answer", "tests", "shadow.quality" if name == "right" else "quality"])
