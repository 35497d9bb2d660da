"""Test the benches' loop in one process: attempts become labels that the learner groups and trains on."""

import math
from pathlib import Path

import pytest
from asynchrony.machines import MACHINES
from asynchrony.simulation import Loop
from asynchrony.stages import read_stages
from credit import RULES, settings_of
from credit_cases import with_critic_values
from in_process import Conversation, Policy, Renderer, play
from labelled_records import tiny_model

from stepstream.learner.advantages.from_config import rule_of
from stepstream.services.fleet.trail import Trail
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.continuous_batch import Batch
from stepstream.services.inference.engine import TokenChunk, VersionSpan
from stepstream.services.inference.llama import LlamaWeights

TASK = next(Trail.tasks(0, "train"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base") / "model")


def walk(renderer: Renderer, group: str, number: int, wrong: bool) -> Conversation:
    """Play an attempt that follows the trail and answers right, or wrong if `wrong`."""
    conversation = Conversation(TASK, group, f"{group}/{number}", 0, renderer)
    clue, tokens = conversation.environment.first_message[2:], renderer.tokenizer
    while True:
        over = clue.startswith("!")
        text = f"ans({'?' if wrong else clue[1:]})" if over else f"{'dial' if clue.isdigit() else 'open'}({clue})"
        ids = tokens.prompt_ids([{"role": "assistant", "content": text}], [])[1:]
        before = len(conversation.prompt) + len(ids)
        more = conversation.respond(TokenChunk(ids, [-0.5] * len(ids), "stop", [VersionSpan(0, 0, len(ids))]))
        if not more:
            return conversation
        clue = tokens.text(conversation.prompt[before:])[1:].strip()


def test_attempts_become_groups_that_every_rule_credits(base: Path) -> None:
    renderer = Renderer(ChatTokenizer(base), Trail)
    settings = settings_of("trail", "dr_grpo", 0)
    config = settings.learner.model_copy(update={"group_size": 2, "groups_per_update": 1, "updates_per_checkpoint": 1})
    policy = Policy(settings.model_copy(update={"learner": config}), base)
    assert policy.missing_groups() == 1
    attempts = policy.read([walk(renderer, "g", 0, wrong=False), walk(renderer, "g", 1, wrong=True)])
    assert [attempt.untrainable for attempt in attempts] == ["", ""]
    assert [attempt.reward for attempt in attempts] == [1.0, 0.0]
    good, bad = (attempt.credit for attempt in attempts)
    assert len(good.steps) == len(bad.steps) == 12
    assert [step.observation for step in good.steps] == [step.observation for step in bad.steps]
    assert policy.missing_groups() == 0
    for rule in RULES:
        credit = rule_of(config.model_copy(update={"advantage": rule}))(
            [[with_critic_values(good), with_critic_values(bad)]]
        ).groups[0]
        assert credit[0].steps[-1] > credit[1].steps[-1], rule
    assert all(settings_of("trail", rule, 0).learner.advantage == rule for rule in RULES)
    assert policy.update()
    assert policy.publish().shape.vocabulary == policy.limits.vocabulary
    assert policy.version == 1


def test_play_ends_and_is_reproducible(base: Path) -> None:
    renderer = Renderer(ChatTokenizer(base), Trail)
    weights = LlamaWeights(base)

    def outcomes() -> list[list[int]]:
        attempts = [Conversation(TASK, "g", str(number), 3, renderer) for number in range(4)]
        play(Batch(weights, 0, 3, 256), attempts)
        return [attempt.prompt for attempt in attempts]

    assert outcomes() == outcomes()
    assert len({tuple(prompt) for prompt in outcomes()}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["shared", "separate"])
def test_the_loop_on_a_virtual_clock_is_reproducible(base: Path, machine: str) -> None:
    """An untrained model misses the target; the loop must make progress and repeat exactly."""
    kind = MACHINES[machine]
    settings = kind.settings(settings_of("lookup", "dr_grpo", 0), 1, "decoupled")
    settings = settings.model_copy(update={"fleet": settings.fleet.model_copy(update={"concurrency": 4})})

    def run() -> dict[str, object]:
        figures = Loop(settings, base, 0, kind.stages(read_stages()), kind.cores).run(0.4)
        return {name: value for name, value in figures.items() if name != "cpu_s"}

    first = run()
    assert first == run()
    assert first["seconds"] is None
    assert isinstance(first["samples"], int)
    assert 0 < first["samples"] < 2000
    assert isinstance(first["cores_used"], float)
    assert 0 < first["cores_used"] <= min(kind.cores, math.inf) + 1e-9
