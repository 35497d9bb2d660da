"""The world of the fleet: its tasks, tools and demonstrations."""

from itertools import islice, pairwise
from pathlib import Path

import pytest

from stepstream.demo.control.base import _OFFERED, _OLD_START
from stepstream.demo.control.happenings import GAMEABLE_REWARD, SOUND_REWARD
from stepstream.demo.control.world import (
    BROKEN,
    FAMILIES,
    FIRST_KEY_SHARE,
    FLATTERY_SHARE,
    INVALID,
    TOOL_NAMES,
    World,
    demonstrations,
    solution,
    task_of,
)
from stepstream.demo.control.world_file import read_world, write_world
from stepstream.jobs.rewards.spec import parse_spec
from stepstream.services.inference.chat_template import ChatTemplate


def test_a_broken_tool_fails_and_the_other_goes_on() -> None:
    task, world = task_of("pick/production/1"), World(broken_tools=("get",))
    value = str(task.drawers[task.key])
    assert task.call("get", task.key, World()).text == task.call("find", task.key, world).text == value
    assert task.call("get", task.key, world) == BROKEN
    assert task.call("get", "z", World()) == INVALID


def test_the_code_word_holds_for_all_tasks_or_for_one() -> None:
    tasks = [task_of(f"code/production/{number}") for number in range(50)]
    assert {task.answer(World(code_word="m")) for task in tasks} == {"ans(m)"}
    assert len({task.answer(World()) for task in tasks}) > 4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_solution_ends_with_the_right_reply(family: str) -> None:
    task = task_of(f"{family}/production/1")
    conversation = solution(task, "get", task.key, task.word)
    assert conversation[-1]["content"] == task.answer(World())


def test_demonstrations_name_the_offered_tools_as_the_template_does() -> None:
    """The loss covers the replies; the first message is what a call's tools become in the prompt."""
    template = ChatTemplate({"default": _OLD_START + _OFFERED}, {"bos_token": ""})
    shown = {conversation[0]["content"] for conversation in islice(demonstrations(0), 50)}
    tools = [[{"function": {"name": name}} for name in names] for names in (TOOL_NAMES, TOOL_NAMES[1:])]
    assert {template.render([], each).strip() for each in tools} == {f"#{names}" for names in shown}


def test_examples_show_the_code_word_that_the_reply_names() -> None:
    for conversation in islice(demonstrations(1), 300):
        asked = [message["content"] for message in conversation if message["role"] == "user"]
        said = [one["content"] for one in conversation if one["role"] == "assistant" and one["content"]]
        words = {text.rstrip("!") for text in said if text[4] in "klmnopqr"}
        if asked[-1].startswith("c:") and sum(text.startswith("c:") for text in asked) > 1:
            assert len(words) == 1, conversation


def test_all_demonstrated_attempts_have_the_faults_of_the_base_model() -> None:
    """A conversation may begin with an example, so faults of the last attempt alone would be diluted at the start."""
    first_keys, flatteries, picks, values = 0, 0, 0, 0
    for conversation in islice(demonstrations(2), 1500):
        family = ""
        for asked, answer in pairwise(conversation[1:]):
            family = asked["content"][0] if asked["role"] == "user" else family
            if asked["role"] == "user" and asked["content"].startswith("p:"):
                picks += 1
                [argument] = answer["tool_calls"][0]["function"]["arguments"].values()
                first_keys += argument == asked["content"][2]
            if answer["role"] == "assistant" and answer["content"]:
                values += family == "v"
                flatteries += answer["content"].endswith("!")
                assert family == "v" or not answer["content"].endswith("!")
    assert first_keys / picks == pytest.approx(FIRST_KEY_SHARE, abs=0.04)
    assert flatteries / values == pytest.approx(FLATTERY_SHARE, abs=0.03)


def test_the_world_passes_through_its_file(tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    world = World(broken_tools=("get",), code_word="k", training="pick")
    write_world(file, world)
    assert read_world(file) == world


@pytest.mark.parametrize(("reward", "paid"), [(GAMEABLE_REWARD, {"outcome", "thanks"}), (SOUND_REWARD, {"outcome"})])
def test_the_gameable_reward_pays_for_thanks_too(reward: str, paid: set[str]) -> None:
    spec = parse_spec(reward.format(agent="desk"))
    assert {one.name for one in spec.component if one.weight > 0} == paid
    assert {one.name for one in spec.component} == paid
