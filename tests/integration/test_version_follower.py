"""Test the follower of versions and rollouts on a real broker and registry."""

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.topics.catalogue import CHECKPOINTS, ROLLOUTS
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_checkpoint, new_rollout
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer
from stepstream.versions.follower import VersionFollower
from stepstream.versions.rollouts import NOTHING_SERVED


@pytest.fixture
def producer(registry_settings: Settings) -> Iterator[EventProducer]:
    with closing(Codec(registry_settings)) as codec:
        yield EventProducer(registry_settings.kafka, codec, "test")


def publish(producer: EventProducer, model: str, version: int) -> None:
    checkpoint = new_checkpoint(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        model=model,
        version=version,
        uri="file:///nowhere",
        weights_sha256="",
        code_version="test",
    )
    producer.send(CHECKPOINTS, f"{model}@{version}", checkpoint)
    producer.flush(TIMEOUT_S)


def test_it_has_earlier_events_and_follows_later_ones(registry_settings: Settings, producer: EventProducer) -> None:
    model, other = uuid.uuid4().hex, uuid.uuid4().hex
    publish(producer, model, 1)
    publish(producer, model, 2)
    with VersionFollower(registry_settings) as follower:
        assert follower.wait_current(TIMEOUT_S)
        assert follower.is_current
        assert follower.served(model).stable == 2
        assert follower.served(other) == NOTHING_SERVED
        checkpoint = follower.checkpoint(model, 1)
        assert checkpoint is not None
        assert checkpoint["version"] == 1
        assert follower.checkpoint(model, 3) is None
        changed: list[str] = []
        follower.on_change(changed.append)

        decision = new_rollout(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            model=model,
            stable_version=1,
            canary_version=2,
            canary_share=0.5,
        )
        producer.send(ROLLOUTS, model, decision)
        publish(producer, other, 7)
        wait_until(lambda: follower.rollout(model) is not None and follower.served(other).stable == 7)
        assert (follower.served(model).stable, follower.served(model).canary) == (1, 2)
        wait_until(lambda: {model, other} <= set(changed))

        # Deleted keys count no longer.
        producer.delete(ROLLOUTS, model)
        producer.delete(CHECKPOINTS, f"{model}@2")
        producer.flush(TIMEOUT_S)
        wait_until(lambda: follower.served(model).stable == 1 and follower.rollout(model) is None)
        assert list(follower.checkpoints(model)) == [1]
        assert {model, other} <= set(follower.models())
