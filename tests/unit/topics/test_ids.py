"""Derived ids are stable; new event ids sort by time."""

import hashlib
import uuid

from hypothesis import given
from hypothesis import strategies as st

from stepstream.topics.ids import derived_id, new_event_id, token_digest


def test_event_ids_are_uuid7_and_sort_by_time() -> None:
    ids = [new_event_id() for _ in range(1000)]
    assert all(uuid.UUID(one).version == 7 for one in ids)
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000


def test_derived_ids_are_the_same_in_every_process() -> None:
    assert derived_id("govern@1", "a", 1) == "e9a35462-5e62-50f6-8a07-0929055e68ca"


@given(st.lists(st.text(max_size=5), max_size=3), st.lists(st.text(max_size=5), max_size=3))
def test_different_origins_give_different_ids(a: list[str], b: list[str]) -> None:
    if "\x1f" not in "".join(a + b) and a != b and a and b:
        assert derived_id("j@1", *a) != derived_id("j@1", *b)
    assert derived_id("j@1", *a) == derived_id("j@1", *a)
    assert derived_id("j@2", *a) != derived_id("j@1", *a)


def test_token_digest_is_over_little_endian_int32() -> None:
    assert token_digest([1, 258]) == hashlib.sha256(b"\x01\x00\x00\x00\x02\x01\x00\x00").hexdigest()
