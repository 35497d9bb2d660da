"""The content of a large record goes to the store and comes back; it is erased with its key, and each tenant's own."""

import struct
from pathlib import Path
from typing import Any

import pytest
from sample_records import T0_US, feedback, step, trajectory
from sealing import MASTER, Keys

from stepstream.config import LargeRecordsSettings, PathsSettings, Settings
from stepstream.crypto.content_store import ContentStore
from stepstream.crypto.sealing import is_erased
from stepstream.topics.catalogue import FEEDBACK, LABELED_TRAJECTORIES, STEPS
from stepstream.topics.codec import Codec, ContentUnavailable, Malformed, MissingContent, Oversized
from stepstream.topics.events import new_conversation, new_message

HEADER = struct.pack(">bI", 0, 1)
LIMIT = 800_000
TEXT = "word " * 400_000
"""2 MB."""
ADA = "ada lovelace"


class LargeCodec(Codec):
    """A codec of a test's folder and keys, without a registry."""

    def __init__(self, data: Path, keys: Keys | None = None, topic: str = STEPS, **fields: Any) -> None:
        self.settings = MASTER.model_copy(
            update={"paths": PathsSettings(data=data), "large_records": LargeRecordsSettings(**fields)}
        )
        self._of = topic
        super().__init__(self.settings, (keys or Keys()).sealer(self.settings), moves_out=True, keep_arrays=True)

    def header(self, topic: str, text: str | None = None) -> bytes:
        return HEADER

    def _look_up_writer(self, schema_id: int) -> Any:
        return self._parsed[self._of]


def large_step(**fields: Any) -> Any:
    return step(response=new_message(role="assistant", content=TEXT), error="Timeout", **fields)


def objects(data: Path) -> list[Path]:
    return sorted(path for path in (data / "large-records").rglob("*") if path.is_file())


def claim_of(codec: Codec, value: bytes) -> Any:
    """Return a value as programs without keys read it."""
    codec._sealing, sealing = None, codec._sealing
    try:
        return codec.decode(STEPS, value)
    finally:
        codec._sealing = sealing


@pytest.mark.parametrize("user", [ADA, None])
@pytest.mark.parametrize(
    ("topic", "record"),
    [
        (STEPS, large_step()),
        (FEEDBACK, feedback(comment=TEXT)),
        (
            LABELED_TRAJECTORIES,
            trajectory(conversations=[new_conversation(messages=[new_message(role="tool", content=TEXT * 9)])]),
        ),
    ],
    ids=[STEPS, FEEDBACK, LABELED_TRAJECTORIES],
)
def test_a_large_record_fits_its_topic_and_reads_whole(
    tmp_path: Path, topic: str, record: Any, user: str | None
) -> None:
    codec = LargeCodec(tmp_path, topic=topic)
    record = {**record, "user": user}
    value = codec.encode(topic, record)
    assert len(value) < LIMIT
    assert codec.decode(topic, value) == record
    [found] = objects(tmp_path)
    assert (b"word word" in found.read_bytes()) == (user is None)
    assert len(codec.encode(topic, record, whole=True)) > 2_000_000


def test_a_record_up_to_the_limit_stays_whole(tmp_path: Path) -> None:
    codec = LargeCodec(tmp_path)
    small = step(response=new_message(role="assistant", content="x" * (LIMIT - 1000)))
    assert len(codec.encode(STEPS, small)) > LIMIT - 1000
    assert objects(tmp_path) == []


def test_the_clear_part_has_no_content_and_names_the_object(tmp_path: Path) -> None:
    codec = LargeCodec(tmp_path)
    for user in (ADA, None):
        clear = claim_of(codec, codec.encode(STEPS, large_step(user=user)))
        assert (clear["messages"], clear["response"]["content"], clear["error"]) == ([], "", "erased")
        assert clear["user"] is None
        assert (tmp_path / "large-records" / clear["claim"]["path"]).stat().st_size == clear["claim"]["size_bytes"]


def test_without_its_key_an_object_is_unreadable_and_the_record_erased(tmp_path: Path) -> None:
    keys = Keys()
    codec = LargeCodec(tmp_path, keys)
    value = codec.encode(STEPS, large_step(user=ADA))
    keys.destroy()
    assert len(objects(tmp_path)) == 1
    record = LargeCodec(tmp_path, keys).decode(STEPS, value)
    assert is_erased(record)
    assert (record["claim"], record["response"]["content"]) == (None, "")


def test_an_erased_record_does_not_need_its_object(tmp_path: Path) -> None:
    keys = Keys()
    codec = LargeCodec(tmp_path, keys)
    value = codec.encode(STEPS, large_step(user=ADA))
    keys.destroy()
    objects(tmp_path)[0].unlink()
    assert is_erased(codec.decode(STEPS, value))


@pytest.mark.parametrize("user", [ADA, None])
def test_a_missing_object_makes_an_invalid_record(tmp_path: Path, user: str | None) -> None:
    codec = LargeCodec(tmp_path)
    value = codec.encode(STEPS, large_step(user=user))
    objects(tmp_path)[0].unlink()
    with pytest.raises(MissingContent, match=r"large_records\.store differs"):
        codec.decode(STEPS, value)


@pytest.mark.parametrize("change", [lambda old: b"x" + old[1:], lambda old: old[:-1], lambda old: old + b"x"])
def test_a_changed_object_makes_an_invalid_record(tmp_path: Path, change: Any) -> None:
    codec = LargeCodec(tmp_path)
    value = codec.encode(STEPS, large_step(user=ADA))
    [found] = objects(tmp_path)
    found.write_bytes(change(found.read_bytes()))
    with pytest.raises(Malformed, match="changed or cut"):
        codec.decode(STEPS, value)


def test_a_record_opens_no_object_of_another_tenant(tmp_path: Path) -> None:
    codec = LargeCodec(tmp_path)
    stolen = claim_of(codec, codec.encode(STEPS, large_step()))["claim"]
    for tenant, path in (("other", stolen["path"]), ("default", f"../{stolen['path']}"), ("default", "x/../../etc")):
        thief = step(tenant=tenant) | {"claim": stolen | {"path": path}}
        with pytest.raises(Malformed, match="not one of its tenant's"):
            codec.decode(STEPS, codec.encode(STEPS, thief))


def test_the_object_of_another_record_does_not_open(tmp_path: Path) -> None:
    codec = LargeCodec(tmp_path)
    claims = [claim_of(codec, codec.encode(STEPS, large_step(user=ADA, event_id=name))) for name in "ab"]
    swapped = claims[0] | {"claim": claims[1]["claim"]}
    with pytest.raises(Malformed, match="another record"):
        codec.decode(STEPS, HEADER + codec._body_unsealed(STEPS, swapped))


def test_a_store_that_does_not_answer_makes_the_record_wait(tmp_path: Path) -> None:
    codec = LargeCodec(tmp_path)
    (tmp_path / "large-records").write_text("no folder")
    with pytest.raises(ContentUnavailable):
        codec.encode(STEPS, large_step())


def test_content_above_the_limit_is_oversized(tmp_path: Path) -> None:
    codec = LargeCodec(tmp_path, max_mb=1)
    with pytest.raises(Oversized, match=r"exceed large_records\.max_mb, 1 MB"):
        codec.encode(STEPS, large_step())
    with pytest.raises(Oversized, match="without its content"):
        codec.encode(STEPS, step(task_id="x" * LIMIT))
    value = LargeCodec(tmp_path).encode(STEPS, large_step())
    with pytest.raises(Oversized):
        codec.decode(STEPS, value)


def test_events_from_before_an_erasure_leave_no_object(tmp_path: Path) -> None:
    keys = Keys()
    codec = LargeCodec(tmp_path, keys)
    codec.encode(STEPS, step(user=ADA))
    keys.destroy()
    value = codec.encode(STEPS, large_step(user=ADA, occurred_at_us=T0_US))
    assert is_erased(codec.decode(STEPS, value))
    assert objects(tmp_path) == []


def test_the_same_content_is_stored_once(tmp_path: Path) -> None:
    store = ContentStore(Settings(paths=PathsSettings(data=tmp_path)))
    assert store.write("t", b"x") == store.write("t", b"x")
    assert store.write("u", b"x") != store.write("t", b"x")
    assert len(objects(tmp_path)) == 2
