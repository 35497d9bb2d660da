"""The job `verify` over a real broker: verdicts become feedback, and feedback becomes components of a label."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from scripted_judge import answering, reply
from stack_fixtures import changed
from stack_world import World
from stream_records import make_ending, make_steps
from waiting import PATIENCE_S, until

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
    """A judge that likes what is right."""
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
    with_topics: Callable[[Settings], Settings],
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    with answering(judged) as (url, _):
        settings = changed(
            with_topics(isolated(base_settings, tmp_path_factory.mktemp("stack"))),
            stack={"more": ["verify"]},
            label={"reward_spec": folder / "reward.toml"},
            judge={"url": url, "model": "scripted", "per_minute": 60_000.0},
            verify={"file": folder / "verify.toml"},
        )
        with Stack(settings, PROCESSES) as running:
            yield running


class Judged(World):
    """A stack whose labels and verdicts are followed."""

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
        """One trajectory that answers with code."""
        steps = make_steps(name, 2, task_id=task_id, consent="train")
        steps[1]["response"] = new_message(role="assistant", content=code)
        self.send("steps", *steps)
        self.put("feedback", make_ending(name, 2))

    def look(self) -> None:
        """Takes in what is new."""
        for event in self._log.poll(500, 0.1):
            name = event.record["trajectory_id"]
            if event.topic == "feedback":
                self.feedback[name].append(event.record)
            elif name not in self.labels or event.record["revision"] > self.labels[name]["revision"]:
                self.labels[name] = event.record

    def components(self, name: str, *wanted: str) -> dict[str, tuple[float, str]]:
        """Waits until a label has these components at its last step; gives (value, source) of each."""
        terms: dict[str, Any] = {}

        def there() -> bool:
            self.look()
            terms.clear()
            if name in self.labels:
                terms.update({term["name"]: term for term in self.labels[name]["steps"][-1]["components"]})
            return terms.keys() >= set(wanted)

        until(there, lambda: f"{name} has {terms}, not {wanted}")
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


def test_a_judge_counts_once_it_is_calibrated(world: Judged, folder: Path) -> None:
    assert "judge" in world.command("verify", "check", str(folder / "verify.toml"))
    told = world.command("verify", "calibrate", str(folder / "verify.toml"), "--set", str(folder / "labelled.jsonl"))
    assert "verdicts count" in told
    assert "agreement  1.000" in told
    deadline = time.monotonic() + PATIENCE_S
    number = 0
    while True:  # the job hears of it a moment later
        number += 1
        world.answer(f"judged-{number}", RIGHT)
        components = world.components(f"judged-{number}", "answer", "tests")
        while not {"quality", "measured quality"} & set(components):
            components = world.components(f"judged-{number}", "answer", "tests")
        if "quality" in components:
            break
        assert time.monotonic() < deadline
    assert components["quality"] == (0.75, "judge")


def test_what_came_while_the_job_was_down_is_judged_once(stack: Stack, world: Judged) -> None:
    stack.stop_process("verify")
    world.answer("later", RIGHT)
    stack.start_process("verify")
    world.components("later", "answer", "tests", "quality")
    for name in ("right", "later"):
        said = sorted(event["name"] for event in world.feedback[name] if event["producer"] == "verify/1")
        assert said == sorted(["answer", "tests", "shadow.quality" if name == "right" else "quality"])
