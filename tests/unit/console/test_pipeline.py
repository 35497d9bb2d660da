"""Test what the page Pipeline reads beside the tables."""

from pathlib import Path

import pytest

from stepstream.services.console.api.pipeline import spool_sizes


def test_a_spool_file_may_vanish_while_it_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gateway").mkdir()
    for name in ("a", "b"):
        (tmp_path / "gateway" / name).write_bytes(b"12345")
    monkeypatch.setattr(Path, "is_file", lambda _: True)  # as it was before the file vanished
    real = Path.stat

    def stat(path: Path, **options: bool) -> object:
        if path.name == "a":
            raise FileNotFoundError(path)
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert list(spool_sizes(tmp_path)) == [5]


def test_without_a_spool_nothing_is_counted(tmp_path: Path) -> None:
    assert list(spool_sizes(tmp_path / "absent")) == []
