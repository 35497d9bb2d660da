"""Spools return appended records in order, also after a crash at any byte."""

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepstream.delivery import segment
from stepstream.delivery.spool import Spool
from stepstream.delivery.types import SpoolPosition, SpoolRecord

MB = 1024 * 1024
SCHEMAS = {"steps": '{"type": "string"}', "feedback": '{"type": "long"}'}


def record(number: int, topic: str = "steps", size: int = 10) -> SpoolRecord:
    headers = {"traceparent": "00-é"} if number % 2 else None
    return SpoolRecord(topic, f"key-{number % 3}", f"id-{number}", number, headers, SCHEMAS[topic], b"x" * size)


def open_spool(folder: Path, limit: int = MB) -> tuple[Spool, list[int]]:
    dropped: list[int] = []
    return Spool(folder, limit, dropped.append), dropped


def drain(queue: Spool) -> list[tuple[SpoolRecord, SpoolPosition]]:
    records = []
    while chunk := queue.read(64 * 1024):
        records += chunk
    return records


def numbers(entries: list[tuple[SpoolRecord, SpoolPosition]]) -> list[int]:
    return [entry.occurred_at_us for entry, _ in entries]


def kill(queue: Spool) -> None:
    """Stop a writer as kill -9 does: files unchanged, locks released."""
    for open_segment in queue._segments.values():
        open_segment.close()
    os.close(queue._lock)


def test_records_are_read_unchanged_and_in_order(tmp_path: Path) -> None:
    queue, _ = open_spool(tmp_path)
    records = [record(n, "feedback" if n % 5 == 0 else "steps", n * 10) for n in range(300)]
    for entry in records:
        queue.append(entry)
    assert queue.unread == 300
    entries = drain(queue)
    assert [entry for entry, _ in entries] == records
    queue.mark_delivered(entries[-1][1])
    queue.close()
    assert [path.name for path in queue.folder.iterdir()] == ["lock"]


def test_a_crash_repeats_only_undelivered_records(tmp_path: Path) -> None:
    queue, _ = open_spool(tmp_path)
    positions = [queue.append(record(n, size=3000), mark_read=True) for n in range(100)]
    queue.mark_delivered(positions[59])
    kill(queue)
    after, _ = open_spool(tmp_path)
    assert after.unread == 40
    assert numbers(drain(after)) == list(range(60, 100))
    after.close()


@given(cut=st.floats(0, 1), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_a_truncated_file_yields_its_complete_records(
    cut: float, sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    queue, _ = open_spool(folder)
    ends = [queue.append(record(n, size=size)).end for n, size in enumerate(sizes)]
    kill(queue)
    (path,) = queue.folder.glob("*.spool")
    at = round(cut * path.stat().st_size)
    os.truncate(path, at)
    after, dropped = open_spool(folder)
    assert numbers(drain(after)) == [n for n, end in enumerate(ends) if end <= at]
    assert dropped == []
    after.append(record(99))
    assert numbers(drain(after)) == [99]
    after.close()
    shutil.rmtree(folder)


@given(flip=st.floats(0, 1, exclude_max=True), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_a_damaged_file_yields_no_wrong_record(
    flip: float, sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    queue, _ = open_spool(folder)
    records = [record(n, size=size) for n, size in enumerate(sizes)]
    for entry in records:
        queue.append(entry)
    kill(queue)
    (path,) = queue.folder.glob("*.spool")
    data = bytearray(path.read_bytes())
    data[int(flip * len(data))] ^= 0x40
    path.write_bytes(data)
    after, _ = open_spool(folder)
    entries = [entry for entry, _ in drain(after)]
    assert entries == records[: len(entries)]
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
def test_any_sequence_of_calls_keeps_order_and_all_records(
    moves: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("moves")
    queue, dropped = open_spool(folder)
    appended = 0
    taken: list[tuple[int, SpoolPosition]] = []  # read and not delivered
    unread: list[int] = []
    for move in moves:
        if move in ("append", "large", "direct"):
            entry = record(appended, size=30_000 if move == "large" else 10)
            if move == "direct" and not unread:
                taken.append((appended, queue.append(entry, mark_read=True)))
            else:
                queue.append(entry)
                unread.append(appended)
            appended += 1
        elif move == "read":
            entries = queue.read(100)
            assert numbers(entries) == unread[: len(entries)]
            assert entries or not unread
            taken += [(entry.occurred_at_us, position) for entry, position in entries]
            del unread[: len(entries)]
        elif move == "deliver" and taken:
            half = len(taken) // 2
            queue.mark_delivered(taken[half][1])
            del taken[: half + 1]
        elif move == "rewind" and taken:
            half = len(taken) // 2
            assert queue.rewind([position for _, position in taken[half:]]) == 0
            unread = [number for number, _ in taken[half:]] + unread
            del taken[half:]
        elif move in ("reopen", "die"):
            kill(queue) if move == "die" else queue.close()
            queue, dropped = open_spool(folder)
            unread = [number for number, _ in taken] + unread
            taken = []
        assert queue.unread == len(unread)
    assert numbers(drain(queue)) == unread
    assert dropped == []
    queue.close()
    assert queue.size_bytes == sum(path.stat().st_size for path in queue.folder.glob("*.spool"))
    shutil.rmtree(folder)


def test_a_full_spool_drops_and_logs_its_oldest_segments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue, dropped = open_spool(tmp_path)
    for n in range(2000):
        queue.append(record(n, size=1000))
    assert queue.size_bytes <= MB
    assert sum(path.stat().st_size for path in queue.folder.glob("*.spool")) <= MB
    remaining = numbers(drain(queue))
    assert remaining == list(range(2000 - len(remaining), 2000))
    assert len(remaining) > 800
    assert sum(dropped) == 2000 - len(remaining)
    assert "dropped the oldest segment" in caplog.text
    queue.close()


def test_rewind_counts_dropped_records(tmp_path: Path) -> None:
    queue, dropped = open_spool(tmp_path)
    positions = [queue.append(record(n, size=1000), mark_read=True) for n in range(2000)]
    assert dropped == []  # read records belong to their reader
    dropped_count = queue.rewind(positions)
    assert dropped_count == 2000 - queue.unread
    assert 0 < dropped_count < 1200
    assert numbers(drain(queue)) == list(range(dropped_count, 2000))
    queue.close()


def test_a_record_larger_than_the_spool_is_rejected(tmp_path: Path) -> None:
    queue, dropped = open_spool(tmp_path, 100_000)
    queue.append(record(0))
    with pytest.raises(OSError, match="does not fit"):
        queue.append(record(1, size=200_000))
    queue.append(record(2))
    assert numbers(drain(queue)) == [0, 2]
    assert dropped == []
    queue.close()


@pytest.mark.parametrize("piece", [0, 1, 7, 50])
def test_a_full_disk_keeps_the_earlier_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    queue, _ = open_spool(tmp_path)
    queue.append(record(0))

    def full(fd: int, data: bytes) -> int:
        if not piece:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:piece])

    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(3):
            with pytest.raises(OSError, match=r"full|space"):
                queue.append(record(1))
    queue.append(record(2))
    assert numbers(drain(queue)) == [0, 2]
    kill(queue)
    after, _ = open_spool(tmp_path)
    assert numbers(drain(after)) == [0, 2]
    after.close()


def test_writers_have_separate_folders_and_a_later_writer_adopts_both(tmp_path: Path) -> None:
    first, _ = open_spool(tmp_path)
    second, _ = open_spool(tmp_path)
    assert first.folder != second.folder
    first.append(record(0))
    second.append(record(1))
    positions = [second.append(record(n)) for n in (2, 3)]
    drain(second)
    second.mark_delivered(positions[0])
    kill(second)
    third, _ = open_spool(tmp_path)  # adopts the second's folder; the first writer lives
    assert third.folder == second.folder
    assert numbers(drain(third)) == [3]
    kill(third)
    kill(first)
    fourth, _ = open_spool(tmp_path)
    assert numbers(drain(fourth)) == [0, 3]
    fourth.close()


@pytest.mark.parametrize("name", ["000000000000 copy.spool", ".spool", "-1.spool", "1e3.spool", "\n.spool"])
def test_a_file_of_another_name_stays_and_stops_nothing(tmp_path: Path, name: str) -> None:
    queue, _ = open_spool(tmp_path)
    queue.append(record(1))
    kill(queue)
    alien = queue.folder / name
    alien.write_bytes(b"notes")
    after, dropped = open_spool(tmp_path)
    assert (after.unread, dropped, numbers(drain(after))) == (1, [], [1])
    after.close()
    assert alien.read_bytes() == b"notes"


def test_a_file_of_another_version_is_renamed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue, _ = open_spool(tmp_path)
    (queue.folder / f"{3:012d}.spool").write_bytes(b"something else that is long enough")
    queue.close()
    with caplog.at_level(logging.ERROR):
        after, _ = open_spool(tmp_path)
    assert after.unread == 0
    assert "not a spool file" in caplog.text
    assert list(after.folder.glob("*.unknown"))
    after.close()


def test_a_folder_that_cannot_be_created_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        open_spool(tmp_path / "file")


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
def test_frames_round_trip_records(entry: SpoolRecord) -> None:
    data = segment.schema_frame(7, "steps", SCHEMAS["steps"]) + segment.record_frame(7, entry)
    schemas = segment.Schemas()
    entries = [segment.parse_frame(payload, schemas) for payload, _ in segment.read_frames(data)]
    assert entries == [None, entry]
