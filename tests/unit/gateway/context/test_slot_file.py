"""A file of slots finds each value until its bucket is full, then overwrites the oldest write."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from itertools import count
from pathlib import Path

import pytest

from stepstream.services.gateway.context.slot_file import SlotFile

ONE_BUCKET = 8


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotFile]:
    seconds = count(1)
    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))
    with closing(SlotFile(tmp_path, "values", 16, ONE_BUCKET)) as opened:
        yield opened


def test_a_full_bucket_loses_the_oldest_write(file: SlotFile) -> None:
    keys = [b"%d" % number for number in range(ONE_BUCKET + 1)]
    for key in keys[:-1]:
        file.put(key, key.ljust(16))
    file.put(keys[0], b"newer".ljust(16))
    file.put(keys[-1], keys[-1].ljust(16))
    found = [file.get(key) for key in keys]
    assert found == [b"newer".ljust(16), None, *[key.ljust(16) for key in keys[2:]]]


def test_a_value_that_contains_a_tag_is_no_slot_of_it(file: SlotFile) -> None:
    tag = blake2b(b"key", digest_size=16).digest()[8:]
    file.put(b"other", tag + tag)
    assert file.get(b"key") is None
    file.put(b"key", b"v" * 16)
    assert (file.get(b"key"), file.get(b"other")) == (b"v" * 16, tag + tag)


def test_a_key_with_another_value_gets_the_contested_one(file: SlotFile) -> None:
    first, second, contested = (letter * 16 for letter in (b"f", b"s", b"c"))
    found = []
    for value in (first, first, second, first):
        file.put(b"key", value, contested)
        found.append(file.get(b"key"))
    assert found == [first, first, contested, contested]


def test_a_truncated_file_takes_values_again(file: SlotFile, tmp_path: Path) -> None:
    file.put(b"key", b"v" * 16)
    os.truncate(tmp_path / "values", 20)
    file.put(b"key", b"w" * 16)
    assert file.get(b"key") == b"w" * 16
