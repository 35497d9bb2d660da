"""Create topics with a configured number of partitions; refuse another number while keys have state there."""

from collections.abc import Iterator

import pytest
from stack_fixtures import with_settings
from stack_world import World
from stream_records import as_governed, make_ending, make_steps
from waiting import wait_until

from stepstream.cli import doctor_services
from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.topics import admin
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import admin_client
from stepstream.topics.topic_plan import PartitionsDiffer

PARTITIONS = 3


@pytest.fixture(scope="module")
def settings(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    wanted = with_settings(
        isolated(base_settings, tmp_path_factory.mktemp("partitions")), topics={"partitions": PARTITIONS}
    )
    with Stack(wanted, ["broker", "registry", "label"]) as stack:
        yield stack.settings


def counts(settings: Settings) -> dict[str, int]:
    existing = admin_client(settings.kafka).list_topics(timeout=10).topics
    return {name: len(existing[name].partitions) for name in TOPICS}


def test_topics_have_the_configured_partitions(settings: Settings) -> None:
    assert counts(settings) == {
        name: PARTITIONS if topic.partitions is None else topic.partitions for name, topic in TOPICS.items()
    }
    assert doctor_services.broker(settings).state == "ok"


def test_a_job_works_on_them(settings: Settings) -> None:
    names = [f"t{number}" for number in range(3 * PARTITIONS)]
    with World(settings) as world:
        for name in names:
            world.send("governed-steps", *map(as_governed, make_steps(name, 2)))
            world.send_and_flush("governed-feedback", make_ending(name, 2))
        wait_until(
            lambda: {label["trajectory_id"] for label in world.records("labeled-trajectories")} == set(names),
            "every trajectory has a label",
        )


@pytest.mark.parametrize("partitions", [2, 2 * PARTITIONS])
def test_another_number_is_refused_and_changes_nothing(settings: Settings, partitions: int) -> None:
    before = counts(settings)
    other = with_settings(settings, topics={"partitions": partitions})
    with pytest.raises(PartitionsDiffer, match=f"steps has {PARTITIONS}.*STEPSTREAM_TOPICS_PARTITIONS={PARTITIONS}"):
        admin.apply(other)
    assert counts(settings) == before
    finding = doctor_services.broker(other)
    assert finding.state == "fault"
    assert finding.fix.startswith(f"set STEPSTREAM_TOPICS_PARTITIONS={PARTITIONS}, or copy")
