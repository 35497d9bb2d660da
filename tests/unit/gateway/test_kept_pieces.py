"""Pieces of conversations on disk: they outlive the gateway, bounded, and only who has a name reads its piece."""

from pathlib import Path

import pytest

from stepstream.services.gateway.context.saved_responses import FILE, KeptPieces

DAY_S = 86_400.0


def opened(folder: Path | None, limit_bytes: int = 1 << 20, **more: object) -> KeptPieces:
    return KeptPieces(folder, limit_bytes, DAY_S, **more)  # type: ignore[arg-type]


def test_another_gateway_of_the_folder_finds_what_one_that_was_killed_kept(tmp_path: Path) -> None:
    first = opened(tmp_path / "spool")  # never closed
    first.keep("resp_1", b"what was said")
    first.keep("resp_1", b"what was said at last")
    second = opened(tmp_path / "spool")
    assert second.get("resp_1") == b"what was said at last"
    assert second.get("resp_2") is None
    second.keep("resp_2", b"on")
    assert first.get("resp_2") == b"on"
    second.forget("resp_2")
    assert first.get("resp_2") is None
    first.close()
    second.close()


def test_the_file_alone_tells_neither_names_nor_words(tmp_path: Path) -> None:
    pieces = opened(tmp_path)
    pieces.keep("resp_secret", b"what was said")
    there = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert len(there) > 0
    assert b"what was said" not in there
    assert b"resp_secret" not in there
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    pieces.close()


def test_the_oldest_go_first_and_all_in_time(tmp_path: Path) -> None:
    now = [1_000_000.0]
    pieces = opened(tmp_path, 10_000, now_s=lambda: now[0])
    for number in range(50):
        pieces.keep(f"r{number}", b"x" * 500)
        now[0] += 1
    kept = [number for number in range(50) if pieces.get(f"r{number}") is not None]
    assert kept == list(range(50 - len(kept), 50))
    assert 8_000 < len(kept) * 628 <= 10_000
    now[0] += DAY_S
    assert pieces.get("r49") is None
    pieces.close()


def test_a_damaged_file_is_begun_anew_and_where_there_is_none_memory_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    pieces = opened(tmp_path)
    pieces.keep("r", b"on")
    assert pieces.get("r") == b"on"
    pieces.close()
    assert "begun anew" in caplog.text
    (tmp_path / "file").touch()
    pieces = opened(tmp_path / "file")
    pieces.keep("r", b"on")
    assert pieces.get("r") == b"on"
    pieces.close()
    assert "not kept on disk" in caplog.text
