"""Writing any trajectory in a format and reading it restores the trajectory."""

from itertools import pairwise

import orjson
import pytest
from dataset_strategies import episodes
from hypothesis import HealthCheck, given, settings

from stepstream.datasets import FORMATS, Episode, Origin
from stepstream.datasets.episode import merge
from stepstream.datasets.files import to_line

NOWHERE = Origin(dataset="never used", at_us=1, consent="train", tenant="never used")
TRIALS = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", sorted(FORMATS))
@TRIALS
@given(episode=episodes())
def test_an_episode_survives_a_round_trip(name: str, episode: Episode) -> None:
    lines = [to_line(document) for document in FORMATS[name].write(episode)]
    read_back = [found for line in lines for found in FORMATS[name].read(orjson.loads(line), NOWHERE)]
    assert merge(read_back) == episode


@TRIALS
@given(episode=episodes())
def test_adp_calls_and_results_are_linked_as_the_protocol_requires(episode: Episode) -> None:
    """The rules of its validator: unique ids, a result for each, an id if a result follows."""
    [document] = FORMATS["adp"].write(episode)
    content = document["content"]
    actions = [item for item in content if item["class_"] != "text_observation"]
    call_ids = [item["tool_call_id"] for item in actions if "tool_call_id" in item]
    result_ids = [item["tool_call_id"] for item in content if "tool_call_id" in item and item not in actions]
    assert len(set(call_ids)) == len(call_ids)
    assert sorted(call_ids) == sorted(result_ids)
    for item, next_item in pairwise(content):
        if item["class_"] == "api_action" and next_item["class_"] == "text_observation":
            assert "tool_call_id" in item


@TRIALS
@given(episode=episodes())
def test_every_response_is_in_a_line_of_chat(episode: Episode) -> None:
    contents = [
        m["content"] or "" for d in FORMATS["chat"].write(episode) for m in d["messages"] if m.get("weight") != 0
    ]
    assert all(step["response"]["content"] in contents for step in episode.steps)
