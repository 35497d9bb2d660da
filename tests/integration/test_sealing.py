"""Test sealed records with a real broker and registry: every process opens them until the key is destroyed."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from sample_records import trajectory
from stream_records import make_feedback, make_steps
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.crypto.sealing import is_erased
from stepstream.jobs.erasure.delete_from_log import destroy_keys, write_decision
from stepstream.jobs.erasure.missing_keys import declare_destroyed, find_missing_keys
from stepstream.jobs.erasure.read_log import read_events
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.codec import Codec, KeysUnavailable
from stepstream.topics.consumer import Event
from stepstream.topics.events import SubjectKey
from stepstream.topics.producer import EventProducer

SECRET = "the patient's name is Ada"


def read_all(settings: Settings, codec: Codec, topic: str = "subject-keys") -> list[Event]:
    return list(read_events(settings, codec, topic))


@pytest.fixture
def codecs(registry_settings: Settings) -> Iterator[Callable[..., Codec]]:
    """Return a function that makes codecs, one for each simulated process."""
    made: list[Codec] = []

    def make(**config: Any) -> Codec:
        made.append(sealing_codec(registry_settings, **config))
        return made[-1]

    yield make
    for codec in made:
        codec.close()


def test_one_process_seals_and_another_opens_until_the_key_is_destroyed(
    registry_settings: Settings, codecs: Callable[..., Codec]
) -> None:
    user = uuid.uuid4().hex
    writer, reader, late = codecs(), codecs(), codecs()
    [step] = make_steps(user, 1, user=user, error=SECRET)
    comment = make_feedback(user, comment=SECRET, user=user)
    sealed = writer.encode("steps", step)
    assert user.encode() not in sealed.replace(step["trajectory_id"].encode(), b"")
    assert SECRET.encode() not in sealed
    assert reader.decode("steps", sealed) == step
    assert reader.decode("feedback", writer.encode("feedback", comment)) == comment
    sending = EventProducer(registry_settings.kafka, writer, "test", linger_ms=0)
    sending.send("steps", user, step)
    sending.flush(TIMEOUT_S)
    with closing(Codec(registry_settings)) as plain:
        producer = EventProducer(registry_settings.kafka, plain, "test", linger_ms=0)
        key_id = plain.decode("steps", sealed)["seal_key"]
        producer.delete("subject-keys", key_id)
        producer.flush(TIMEOUT_S)
    with pytest.raises(KeysUnavailable, match=key_id):  # a missing key is no erasure
        late.decode("steps", sealed)
    assert reader.decode("steps", sealed) == step
    missing = find_missing_keys(registry_settings, lambda _: None)
    assert missing[key_id].records == {"steps": 1}
    declare_destroyed(registry_settings, {key_id: missing[key_id]}, "test")
    assert key_id not in find_missing_keys(registry_settings, lambda _: None)
    erased = late.decode("steps", sealed)  # of a process that never read the key
    assert is_erased(erased)
    assert (erased["user"], erased["messages"], erased["response_token_ids"]) == (None, [], [])
    wait_until(lambda: is_erased(reader.decode("steps", sealed)))
    assert late.decode("steps", late.encode("steps", erased)) == erased


def test_a_shared_record_is_erased_with_the_key_of_one_person(
    registry_settings: Settings, codecs: Callable[..., Codec]
) -> None:
    topic, users = "labeled-trajectories", [uuid.uuid4().hex for _ in range(3)]
    label = trajectory("t", user=users[0], other_users=users[1:], signature=[1, 2], trainable=True)
    writer, reader, late = codecs(), codecs(), codecs()
    [last] = make_steps("s", 1, user=users[2])
    with closing(Codec(registry_settings)) as plain:
        key_id = plain.decode("steps", writer.encode("steps", last))["seal_key"]
        sealed = writer.encode(topic, label)
        assert not any(user.encode() in sealed for user in users)
        assert reader.decode(topic, sealed) == label
        [key] = [event.record for event in read_all(registry_settings, plain) if event.key == key_id]
        write_decision(registry_settings, "default", key["subject"], "test")
        destroy_keys(registry_settings, [key])
    erased = late.decode(topic, sealed)
    assert is_erased(erased)
    assert (erased["user"], erased["other_users"], erased["signature"], erased["trainable"]) == (None, [], [], False)
    wait_until(lambda: is_erased(reader.decode(topic, sealed)))


def test_a_codec_with_keep_key_hands_over_each_key_once(codecs: Callable[..., Codec]) -> None:
    user = uuid.uuid4().hex
    keys: list[SubjectKey] = []

    def keep(key: SubjectKey) -> bool:
        keys.append(key)
        return True

    gateway = codecs(keep_key=keep)
    [step] = make_steps(user, 1, user=user)
    values = [gateway.encode("steps", step) for _ in range(3)]
    assert len(keys) == 1
    assert all(gateway.decode("steps", value) == step for value in values)


def test_records_without_a_user_are_not_sealed(registry_settings: Settings, codecs: Callable[..., Codec]) -> None:
    [step] = make_steps("nobody", 1)
    sealing = codecs()
    with closing(Codec(registry_settings)) as plain:
        assert sealing.encode("steps", step) == plain.encode("steps", step)
        assert sealing.decode("steps", plain.encode("steps", step)) == step
    assert sealing._sealing is not None
    assert sealing._sealing._ring is None  # type: ignore[attr-defined]


def test_a_body_of_another_schema_version_is_sealed_again(codecs: Callable[..., Codec]) -> None:
    from stepstream.schemas import schema_text

    user = uuid.uuid4().hex
    codec = codecs()
    [step] = make_steps(user, 1, user=user)
    text = schema_text(TOPICS["steps"].schema).replace("Tokens of the response", "Response tokens")
    body = codec.translate("steps", text, codec.body("steps", step))
    assert codec.decode("steps", codec.header("steps") + body) == step
