"""Check that a cache of versions holds only whole folders and files, also after kill -9, and with several processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from stepstream.versions.cache import is_intact, new_file, new_folder, record_digests, remove_partial

WRITER = """
import sys, time
from pathlib import Path
from stepstream.versions.cache import new_file, new_folder
folder = Path(sys.argv[1])
(folder / "org/m/2-b.files").mkdir(parents=True)
with new_folder(folder / "org/m/1-a.complete") as scratch, new_file(folder / "org/m/2-b.files/model.safetensors"):
    (scratch / "model.safetensors").write_bytes(b"half")
    print("writes", flush=True)
    time.sleep(600)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writes\n"
            before = names(tmp_path)
            assert remove_partial(tmp_path) == []
            assert names(tmp_path) == before
        finally:
            writer.kill()
    assert len(remove_partial(tmp_path)) == 2
    assert names(tmp_path) == ["2-b.files", "m", "org"]
    assert remove_partial(tmp_path / "absent") == []


def test_whole_files_and_folders_are_no_leftovers(tmp_path: Path) -> None:
    with new_folder(tmp_path / "m/1-a.complete") as scratch:
        (scratch / "config.json").write_text("{}")
    with new_file(tmp_path / "m/file") as part:
        part.write_text("whole")
    assert remove_partial(tmp_path) == []
    assert names(tmp_path) == ["1-a.complete", "config.json", "file", "m"]


def test_of_two_that_write_a_folder_the_first_one_wins(tmp_path: Path) -> None:
    with new_folder(tmp_path / "1-a.complete") as second:
        (second / "file").write_text("second")
        with new_folder(tmp_path / "1-a.complete") as first:
            (first / "file").write_text("first")
    assert (tmp_path / "1-a.complete/file").read_text() == "first"
    assert names(tmp_path) == ["1-a.complete", "file"]


def test_a_fault_leaves_nothing(tmp_path: Path) -> None:
    for write in (new_folder, new_file):
        with pytest.raises(RuntimeError), write(tmp_path / "target"):
            raise RuntimeError
    assert names(tmp_path) == []


def test_a_changed_missing_or_added_file_is_no_intact_folder(tmp_path: Path) -> None:
    folder = tmp_path / "1-a.complete"
    (folder / "weights").mkdir(parents=True)
    for name in ("a", "weights/b"):
        (folder / name).write_text(name)
    assert not is_intact(folder), "nothing was noted"
    record_digests(folder)
    assert is_intact(folder)
    (folder / "a").write_text("b")
    assert not is_intact(folder)
    (folder / "a").unlink()
    assert not is_intact(folder)
    (folder / "a").write_text("a")
    assert is_intact(folder)
    (folder / "c").touch()
    assert not is_intact(folder)
    assert not is_intact(tmp_path / "absent")
