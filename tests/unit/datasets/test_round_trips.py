"""Whatever a trajectory holds, writing it in a format and reading that gives it back."""

import orjson
import pytest
from dataset_strategies import episodes
from hypothesis import HealthCheck, given, settings

from stepstream.datasets import FORMATS, Episode, Origin
from stepstream.datasets.episode import merged
from stepstream.datasets.files import line_of

NOWHERE = Origin(dataset="never used", at_us=1, consent="train", tenant="never used")
TRIALS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", sorted(FORMATS))
@TRIALS
@given(episode=episodes())
def test_an_episode_comes_back_whole(name: str, episode: Episode) -> None:
    lines = [line_of(document) for document in FORMATS[name].write(episode)]
    read = [found for line in lines for found in FORMATS[name].read(orjson.loads(line), NOWHERE)]
    assert merged(read) == episode
