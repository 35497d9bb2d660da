"""Make the events of the run happen: change the world, publish a checkpoint or a reward, propose a harness version."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from stepstream.config import Settings, environment_of
from stepstream.demo.control.log_reader import LogReader
from stepstream.demo.control.production import Production
from stepstream.demo.control.timeline import Kind
from stepstream.demo.control.world import TOOL_NAMES, WORDS, World, task_of
from stepstream.demo.control.world_file import write_world
from stepstream.demo.model_checks import write_bad_version
from stepstream.embedded.errors import StackError
from stepstream.learner.lineage import read_versions
from stepstream.learner.model.checkpoint import folder_of
from stepstream.topics.codec import Codec
from stepstream.versions.harnesses import PARTS
from stepstream.versions.layout import weights_folder

EXAMPLES = 2
"""Past successes in the proposed harness version."""
SOUND_REWARD = """
name = "{agent}"
agents = ["{agent}"]

[[component]]
name = "outcome"
feedback = "outcome"
source = "environment"
outcome = true
required = true
wait_s = 60
"""
"""Reward specification of the agent."""
GAMEABLE_REWARD = f"""{SOUND_REWARD}
[[component]]
name = "thanks"
feedback = "thanks"
source = "user"
weight = 2.0
"""
"""It also pays for thanks. A person thanks for a reply that pleases, right or wrong.

The sound one does not even measure thanks: they become fewer as replies become right, which would be an alarm.
"""
SUCCESSES = 4
"""Successes that the proposer waits for: a lucky guess of the old code word must not be among the examples alone."""


class Happenings:
    """Changes the world of one fleet."""

    def __init__(self, settings: Settings, log: LogReader, production: Production, agent: str, seed: int) -> None:
        self._settings, self._log, self._production, self._agent = settings, log, production, agent
        self._random = random.Random(f"happenings/{seed}")
        self._folder = settings.paths.data / "demo-control"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.world = World()
        self.world_file = self._folder / "world.json"
        write_world(self.world_file, self.world)

    def happen(self, kind: Kind) -> str:
        """Let an event happen; return what it happens to.

        Raises:
            StackError: a command was refused.
        """
        happenings: dict[Kind, Callable[[], str]] = {
            "tool_breaks": self._break_tool,
            "better_examples": self._fix_code_word,
            "weights_can_learn": self._train,
            "poisoned_checkpoint": self._publish_poison,
            "gameable_reward": self._pay_thanks,
        }
        return happenings[kind]()

    def end(self, kind: Kind) -> None:
        """End what lasts only for the stretch of an event: the training fleet, and the reward that can be gamed."""
        if kind in ("weights_can_learn", "gameable_reward"):
            self._change(training=None)
        if kind == "gameable_reward":
            self._put_reward(SOUND_REWARD)

    def propose_examples(self, since_us: int, until_us: int) -> str:
        """Propose the agent's newest successes as examples, on top of the stable harness; return the version.

        Empty: too few tasks were solved in the interval.
        """
        solved = self._production.solved("code", since_us, until_us, SUCCESSES)
        if len(solved) < SUCCESSES:
            return ""
        stable = self._log.harness.stable
        content = {part: stable[part] for part in PARTS} if stable is not None else {}  # type: ignore[literal-required]
        content["examples"] = [self._example(task_id) for task_id in solved[:EXAMPLES]]
        content["parents"] = [stable["version"]] if stable is not None else []
        file = self._folder / "proposal.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        reason = f"past successes with the tasks {', '.join(solved[:EXAMPLES])}"
        command = ["harness", "import", str(file), "--agent", self._agent, "--json", "--reason", reason]
        return str(json.loads(self._stepstream(*command))["version"])

    def _example(self, task_id: str) -> dict[str, object]:
        task = task_of(task_id)
        messages = [
            {"role": "user", "content": task.question},
            {"role": "assistant", "content": task.answer(self.world)},
        ]
        return {"messages": messages}

    def _break_tool(self) -> str:
        self._change(broken_tools=(TOOL_NAMES[0],))
        return TOOL_NAMES[0]

    def _fix_code_word(self) -> str:
        self._change(code_word=self._random.choice(WORDS))
        return ""

    def _train(self) -> str:
        self._change(training="pick")
        return ""

    def _pay_thanks(self) -> str:
        self._put_reward(GAMEABLE_REWARD)
        self._change(training="value")
        return ""

    def _put_reward(self, specification: str) -> None:
        file = self._folder / "reward.toml"
        file.write_text(specification.format(agent=self._agent), encoding="utf-8")
        self._stepstream("rewards", "put", str(file), "--json")

    def _publish_poison(self) -> str:
        """Publish random weights in the shape of the served version, signed as the learner signs."""
        model = self._settings.learner.model
        served = self._log.weights.stable
        assert served is not None
        with closing(Codec(self._settings)) as codec:
            checkpoint = read_versions(self._settings.kafka, codec).get(model, served)
        folder = self._folder / "poison"
        write_bad_version(Path(weights_folder(folder_of(checkpoint["uri"]))), folder, self._random.randrange(10**6))
        published = json.loads(self._stepstream("models", "publish", str(folder), "--model", model, "--json"))
        return str(published["name"].rpartition("@")[2])

    def _change(self, **fields: object) -> None:
        self.world = replace(self.world, **fields)  # type: ignore[arg-type]
        write_world(self.world_file, self.world)

    def _stepstream(self, *words: str) -> str:
        """Run a command as a person would; return the last line of its output."""
        command = [sys.executable, "-m", "stepstream.cli.main", *words]
        environment = {**os.environ, **environment_of(self._settings)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StackError(f"stepstream {' '.join(words[:2])}: {(done.stderr or done.stdout).strip()}")
        return done.stdout.strip().splitlines()[-1]
