"""Whatever a trajectory holds, writing it in a format and reading that gives it back."""

from itertools import pairwise

import orjson
import pytest
from dataset_strategies import episodes
from hypothesis import HealthCheck, given, settings

from stepstream.datasets import FORMATS, Episode, Origin
from stepstream.datasets.episode import merged
from stepstream.datasets.files import line_of

NOWHERE = Origin(dataset="never used", at_us=1, consent="train", tenant="never used")
TRIALS = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", sorted(FORMATS))
@TRIALS
@given(episode=episodes())
def test_an_episode_comes_back_whole(name: str, episode: Episode) -> None:
    lines = [line_of(document) for document in FORMATS[name].write(episode)]
    read = [found for line in lines for found in FORMATS[name].read(orjson.loads(line), NOWHERE)]
    assert merged(read) == episode


@TRIALS
@given(episode=episodes())
def test_adp_links_every_call_as_the_protocol_asks(episode: Episode) -> None:
    """The rules of its validator: ids once each, a result for each, an id where a result follows."""
    [document] = FORMATS["adp"].write(episode)
    content = document["content"]
    actions = [item for item in content if item["class_"] != "text_observation"]
    called = [item["tool_call_id"] for item in actions if "tool_call_id" in item]
    answered = [item["tool_call_id"] for item in content if "tool_call_id" in item and item not in actions]
    assert len(set(called)) == len(called)
    assert sorted(called) == sorted(answered)
    for item, follower in pairwise(content):
        if item["class_"] == "api_action" and follower["class_"] == "text_observation":
            assert "tool_call_id" in item


@TRIALS
@given(episode=episodes())
def test_every_response_is_in_some_line_of_chat(episode: Episode) -> None:
    said = [m["content"] or "" for d in FORMATS["chat"].write(episode) for m in d["messages"] if m.get("weight") != 0]
    assert all(step["response"]["content"] in said for step in episode.steps)
