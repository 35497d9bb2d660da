"""Check what is removed of versions that a crash left: nothing that is published, written now, or not marked."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stepstream.core.object_store import read_objects, upload, write_object
from stepstream.learner.unfinished import marked_address, marked_folder, remove_unfinished
from stepstream.topics.events import Checkpoint, new_checkpoint
from stepstream.topics.exclusive_producer import Fenced

OWNER = "learner/m"
WRITER = """
import sys, time
from pathlib import Path
from stepstream.learner.unfinished import marked_folder
folder = Path(sys.argv[1])
with marked_folder(folder):
    folder.mkdir()
    (folder.parent / f".{folder.name}-scratch").mkdir()
    print("writes", flush=True)
    time.sleep(600)
"""


def version(uri: str) -> Checkpoint:
    return new_checkpoint(
        event_id="e", occurred_at_us=0, model="m", version=1, uri=uri, weights_sha256="", code_version=""
    )


def remove(folder: Path, *versions: Checkpoint) -> list[str]:
    return remove_unfinished(versions, [folder], str(folder), "m", OWNER)


def leave(folder: Path) -> None:
    """Mark a folder as a writer that fails does."""
    with suppress(OSError), marked_folder(folder):
        folder.mkdir(parents=True)
        raise OSError("no space")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_killed_writer_s_folders_go_and_a_living_one_s_stay(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "1-a")], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writes\n"
            assert remove(tmp_path) == []
            assert names(tmp_path) == {"1-a", ".1-a-scratch", ".1-a.writing"}
        finally:
            os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    assert sorted(remove(tmp_path)) == [str(tmp_path / ".1-a-scratch"), str(tmp_path / "1-a")]
    assert names(tmp_path) == set()


def test_what_an_event_names_or_nobody_marked_stays(tmp_path: Path) -> None:
    leave(tmp_path / "1-a")
    leave(tmp_path / "2-b")
    (tmp_path / "3-c").mkdir()
    with marked_folder(tmp_path / "4-d"):
        (tmp_path / "4-d").mkdir()
    assert remove(tmp_path, version((tmp_path / "1-a").as_uri())) == [str(tmp_path / "2-b")]
    assert names(tmp_path) == {"1-a", "3-c", "4-d"}
    assert remove(tmp_path / "another model") == []


@pytest.mark.parametrize(
    ("marker", "is_removed"),
    [
        ({"owner": OWNER, "started_at_us": 2**62}, True),
        ({"owner": "models publish", "started_at_us": 2**62}, False),
        ({"owner": "models publish", "started_at_us": 0}, True),
    ],
)
def test_in_a_store_a_fenced_learner_s_files_go_and_a_root_s_after_a_day(
    tmp_path: Path, marker: dict[str, Any], is_removed: bool
) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given/x").write_text("x")
    address = f"memory://{tmp_path.name}/versions"
    for name in ("1-a", "2-b", "3-c"):
        upload(tmp_path / "given", f"{address}/m/{name}")
    for name in ("1-a", "2-b"):
        write_object(f"{address}/m/.writing", name, json.dumps(marker).encode())
    removed = remove_unfinished([version(f"{address}/m/2-b")], [], address, "m", OWNER)
    assert removed == ([f"{address}/m/1-a"] if is_removed else [])
    left = {name for name, _ in read_objects(f"{address}/m/.writing")}
    assert left == (set() if is_removed else {"1-a"})
    for name in ("2-b", "3-c"):
        assert read_objects(f"{address}/m/{name}") == [("x", b"x")]
    assert bool(read_objects(f"{address}/m/1-a")) != is_removed


def test_a_fenced_writer_marks_again_what_it_uploaded_after_the_removal(tmp_path: Path) -> None:
    address = f"memory://{tmp_path.name}/fenced"
    with suppress(Fenced), marked_address(address, "m", "1-a", OWNER):
        remove_unfinished([], [], address, "m", OWNER)
        write_object(f"{address}/m/1-a", "x", b"x")
        raise Fenced
    assert remove_unfinished([], [], address, "m", OWNER) == [f"{address}/m/1-a"]
    with marked_address(address, "m", "2-b", OWNER):
        assert [name for name, _ in read_objects(f"{address}/m/.writing")] == ["2-b"]
    assert read_objects(f"{address}/m/.writing") == []
