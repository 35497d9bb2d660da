"""Train a policy on demonstrations in feedback, with govern, label and learner as processes."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from labelled_records import tiny_model
from log_reading import read_to_end
from stream_records import make_ending, make_feedback, make_steps
from waiting import wait_until

from stepstream.cli.models import rebuild
from stepstream.config import Settings, environment_of
from stepstream.crypto.key_ring import sealing_codec
from stepstream.embedded.stack import Stack
from stepstream.learner.data.chat_template import ChatTemplate
from stepstream.learner.lineage import read_versions
from stepstream.learner.model.checkpoint import folder_of
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.topics.codec import Codec
from stepstream.topics.events import Checkpoint, new_policy_span
from stepstream.topics.producer import EventProducer

SIZE, GROUPS = 2, 24
ANSWER, USER = "the moon", "ann"  # with a user, so that everything is sealed


class World:
    """Sends attempts with wrong answers, and feedback that demonstrates the right one."""

    def __init__(self, settings: Settings, base: Path) -> None:
        self.settings, self.model = settings, settings.learner.model
        self.codec: Codec = sealing_codec(settings)
        self._producer = EventProducer(settings.kafka, self.codec, "test", linger_ms=0)
        self.prompt = ChatTokenizer(base).prompt_ids([{"role": "user", "content": "what shines?"}], [])
        self.answer = ChatTemplate(base)(ANSWER)
        self._wrong = ChatTemplate(base)("the sun")

    def attempt(self, group: str, number: int) -> None:
        [step] = make_steps(
            f"{group}/{number}", 1,
            group_id=group,
            user=USER,
            model=self.model,
            prompt_token_ids=self.prompt,
            response_token_ids=self._wrong,
            response_logprobs=[-4.5] * len(self._wrong),
            policy_spans=[new_policy_span(start=0, end=len(self._wrong), model=self.model, version=0)],
        )  # fmt: skip
        self._producer.send("steps", step["trajectory_id"], step)
        self._producer.send("feedback", step["trajectory_id"], make_ending(step["trajectory_id"], 1, value=0.0))

    def demonstrate(self, name: str) -> None:
        self._producer.send(
            "feedback", name, make_feedback(name, None, number=1, name="correction", demonstration=ANSWER, user=USER)
        )

    def flush(self) -> None:
        self._producer.flush()

    def read(self, topic: str) -> list[Any]:
        return [event.record for event in read_to_end(self.settings, self.codec, topic)]

    def decisions(self) -> set[tuple[str, int, str]]:
        return {
            (decision["trajectory_id"], decision["revision"], decision["reason"] or decision["outcome"])
            for decision in self.read("training-decisions")
        }

    def newest(self) -> Checkpoint:
        found = read_versions(self.settings.kafka, self.codec).newest(self.model)
        assert found is not None
        return found


@pytest.fixture
def world(stack_factory: Callable[..., Stack], tmp_path: Path) -> Iterator[World]:
    base = tiny_model(tmp_path / "base")
    learner = {
        "objective": "sft",
        "group_size": SIZE,
        "groups_per_update": 1,
        "updates_per_checkpoint": 1,
        "minibatches": 1,
        "warmup_updates": 0,
        "learning_rate": 3e-3,
        "staleness_bound": 1000,
    }
    processes = ["broker", "registry", "govern", "label", "learner"]
    stack = stack_factory(processes, stack={"base_model": str(base)}, learner=learner)
    opened = World(stack.settings, base)
    with closing(opened.codec):
        yield opened


def test_late_demonstrations_are_labelled_learned_and_rebuilt(world: World) -> None:
    for number in range(SIZE):
        world.attempt("late", number)
    world.flush()
    wait_until(lambda: len(world.decisions()) == SIZE)
    assert world.decisions() == {(f"late/{number}", 1, "no_success") for number in range(SIZE)}

    world.demonstrate("late/1")
    world.flush()
    wait_until(lambda: ("late/1", 2, "trained") in world.decisions())
    label = next(record for record in world.read("labeled-trajectories") if record["revision"] == 2)
    assert label["steps"][0]["demonstration"] == ANSWER
    assert world.newest()["metrics"]["demonstrated_share"] == 1.0

    for group in range(GROUPS):
        for number in range(SIZE):
            world.attempt(f"g{group}", number)
            world.demonstrate(f"g{group}/{number}")
    world.flush()
    wait_until(lambda: world.newest()["version"] >= GROUPS + 1)
    assert greedy_response(world) == world.answer
    result = CliRunner().invoke(rebuild, [f"{world.model}@latest"], env=environment_of(world.settings))
    assert result.exit_code == 0, result.output


def greedy_response(world: World) -> list[int]:
    """Return the newest version's greedy response to the prompt."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder_of(world.newest()["uri"]) / "weights")
    ids = list(world.prompt)
    for _ in world.answer:
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(world.prompt) :]
