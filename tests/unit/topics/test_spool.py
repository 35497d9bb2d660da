"""The spool: whatever is appended comes back in order, also after a crash at any byte."""

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepstream.delivery import segment, spool
from stepstream.delivery.spool import Spool
from stepstream.delivery.types import SpoolPosition, SpoolRecord

MB = 1024 * 1024
SCHEMAS = {"steps": '{"type": "string"}', "feedback": '{"type": "long"}'}


def record(number: int, topic: str = "steps", size: int = 10) -> SpoolRecord:
    headers = {"traceparent": "00-é"} if number % 2 else None
    return SpoolRecord(topic, f"key-{number % 3}", f"id-{number}", number, headers, SCHEMAS[topic], b"x" * size)


def opened(folder: Path, limit: int = MB) -> tuple[Spool, list[int]]:
    lost: list[int] = []
    return Spool(folder, limit, lost.append), lost


def drain(queue: Spool) -> list[tuple[SpoolRecord, SpoolPosition]]:
    found = []
    while some := queue.read(64 * 1024):
        found += some
    return found


def numbers(found: list[tuple[SpoolRecord, SpoolPosition]]) -> list[int]:
    return [entry.occurred_at_us for entry, _ in found]


def test_records_come_back_whole_and_in_order(tmp_path: Path) -> None:
    queue, _ = opened(tmp_path)
    records = [record(n, "feedback" if n % 5 == 0 else "steps", n * 10) for n in range(300)]
    for entry in records:
        queue.append(entry)
    assert queue.unread == 300
    found = drain(queue)
    assert [entry for entry, _ in found] == records
    queue.mark_delivered(found[-1][1])
    queue.close()
    assert [path.name for path in queue.folder.iterdir()] == ["lock"]


def test_a_crash_repeats_only_what_was_not_delivered(tmp_path: Path) -> None:
    queue, _ = opened(tmp_path)
    places = [queue.append(record(n, size=3000), read=True) for n in range(100)]
    queue.mark_delivered(places[59])
    _die(queue)
    after, _ = opened(tmp_path)
    assert after.unread == 40
    assert numbers(drain(after)) == list(range(60, 100))
    after.close()


@given(cut=st.floats(0, 1), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_a_file_cut_anywhere_gives_a_beginning_of_its_records(
    cut: float, sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    queue, _ = opened(folder)
    ends = [queue.append(record(n, size=size)).end for n, size in enumerate(sizes)]
    _die(queue)
    (path,) = queue.folder.glob("*.spool")
    at = round(cut * path.stat().st_size)
    os.truncate(path, at)
    after, lost = opened(folder)
    assert numbers(drain(after)) == [n for n, end in enumerate(ends) if end <= at]
    assert lost == []
    after.append(record(99))
    assert numbers(drain(after)) == [99]
    after.close()
    shutil.rmtree(folder)


@given(flip=st.floats(0, 1, exclude_max=True), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_damage_anywhere_gives_no_wrong_record(
    flip: float, sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    queue, _ = opened(folder)
    whole = [record(n, size=size) for n, size in enumerate(sizes)]
    for entry in whole:
        queue.append(entry)
    _die(queue)
    (path,) = queue.folder.glob("*.spool")
    data = bytearray(path.read_bytes())
    data[int(flip * len(data))] ^= 0x40
    path.write_bytes(data)
    after, _ = opened(folder)
    found = [entry for entry, _ in drain(after)]
    assert found == whole[: len(found)]
    after.close()
    shutil.rmtree(folder)


@settings(max_examples=40)
@given(
    moves=st.lists(
        st.sampled_from(
            ["append", "append", "append", "large", "direct", "read", "deliver", "rewind", "reopen", "die"]
        ),
        max_size=60,
    )
)
def test_any_interleaving_keeps_order_and_loses_nothing(
    moves: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("moves")
    queue, lost = opened(folder)
    made = 0
    taken: list[tuple[int, SpoolPosition]] = []  # read and not delivered
    unread: list[int] = []
    for move in moves:
        if move in ("append", "large", "direct"):
            entry = record(made, size=30_000 if move == "large" else 10)
            if move == "direct" and not unread:
                taken.append((made, queue.append(entry, read=True)))
            else:
                queue.append(entry)
                unread.append(made)
            made += 1
        elif move == "read":
            found = queue.read(100)
            assert numbers(found) == unread[: len(found)]
            assert found or not unread
            taken += [(entry.occurred_at_us, place) for entry, place in found]
            del unread[: len(found)]
        elif move == "deliver" and taken:
            half = len(taken) // 2
            queue.mark_delivered(taken[half][1])
            del taken[: half + 1]
        elif move == "rewind" and taken:
            half = len(taken) // 2
            assert queue.rewind([place for _, place in taken[half:]]) == 0
            unread = [number for number, _ in taken[half:]] + unread
            del taken[half:]
        elif move in ("reopen", "die"):
            _die(queue) if move == "die" else queue.close()
            queue, lost = opened(folder)
            unread = [number for number, _ in taken] + unread
            taken = []
        assert queue.unread == len(unread)
    assert numbers(drain(queue)) == unread
    assert lost == []
    queue.close()
    assert queue.bytes == sum(path.stat().st_size for path in queue.folder.glob("*.spool"))
    shutil.rmtree(folder)


def test_a_full_spool_gives_up_its_oldest_segment_loudly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue, lost = opened(tmp_path)
    for n in range(2000):
        queue.append(record(n, size=1000))
    assert queue.bytes <= MB
    assert sum(path.stat().st_size for path in queue.folder.glob("*.spool")) <= MB
    kept = numbers(drain(queue))
    assert kept == list(range(2000 - len(kept), 2000))
    assert len(kept) > 800
    assert sum(lost) == 2000 - len(kept)
    assert "LOST" in caplog.text
    queue.close()


def test_given_up_records_cannot_be_read_again(tmp_path: Path) -> None:
    queue, lost = opened(tmp_path)
    places = [queue.append(record(n, size=1000), read=True) for n in range(2000)]
    assert lost == []  # they were read: their reader has them
    gone = queue.rewind(places)
    assert gone == 2000 - queue.unread
    assert 0 < gone < 1200
    assert numbers(drain(queue)) == list(range(gone, 2000))
    queue.close()


def test_a_record_that_can_never_fit_is_refused(tmp_path: Path) -> None:
    queue, lost = opened(tmp_path, 100_000)
    queue.append(record(0))
    with pytest.raises(OSError, match="does not fit"):
        queue.append(record(1, size=200_000))
    queue.append(record(2))
    assert numbers(drain(queue)) == [0, 2]
    assert lost == []
    queue.close()


@pytest.mark.parametrize("piece", [0, 1, 7, 50])
def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    queue, _ = opened(tmp_path)
    queue.append(record(0))

    def full(fd: int, data: bytes) -> int:
        if not piece:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:piece])

    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(spool.os, "write", full)
        for _ in range(3):
            with pytest.raises(OSError, match=r"full|space"):
                queue.append(record(1))
    queue.append(record(2))
    assert numbers(drain(queue)) == [0, 2]
    _die(queue)
    after, _ = opened(tmp_path)
    assert numbers(drain(after)) == [0, 2]
    after.close()


def test_a_second_writer_has_a_folder_of_its_own_and_the_next_one_sends_both(tmp_path: Path) -> None:
    first, _ = opened(tmp_path)
    second, _ = opened(tmp_path)
    assert first.folder != second.folder
    first.append(record(0))
    second.append(record(1))
    places = [second.append(record(n)) for n in (2, 3)]
    drain(second)
    second.mark_delivered(places[0])
    _die(second)
    third, _ = opened(tmp_path)  # takes the second's folder; the first is alive and keeps its own
    assert third.folder == second.folder
    assert numbers(drain(third)) == [3]
    _die(third)
    _die(first)
    fourth, _ = opened(tmp_path)
    assert numbers(drain(fourth)) == [0, 3]
    fourth.close()


def test_a_file_of_another_version_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue, _ = opened(tmp_path)
    (queue.folder / f"{3:012d}.spool").write_bytes(b"something else that is long enough")
    queue.close()
    with caplog.at_level(logging.ERROR):
        after, _ = opened(tmp_path)
    assert after.unread == 0
    assert "no spool file" in caplog.text
    assert list(after.folder.glob("*.unknown"))
    after.close()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        opened(tmp_path / "file")


@given(
    st.builds(
        SpoolRecord,
        st.just("steps"),
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.integers(-(2**63), 2**63 - 1),
        st.none() | st.dictionaries(st.sampled_from(["a", "é"]), st.text(st.characters(codec="utf-8")), min_size=1),
        st.just(SCHEMAS["steps"]),
        st.binary(max_size=200),
    )
)
def test_a_frame_gives_its_record(entry: SpoolRecord) -> None:
    data = segment.schema_frame(7, "steps", SCHEMAS["steps"]) + segment.record_frame(7, entry)
    schemas = segment.Schemas()
    found = [segment.parse(payload, schemas) for payload, _ in segment.frames(data)]
    assert found == [None, entry]


def _die(queue: Spool) -> None:
    """What kill -9 leaves: files as they are, locks gone."""
    for held in queue._segments.values():
        held.close()
    os.close(queue._lock)
