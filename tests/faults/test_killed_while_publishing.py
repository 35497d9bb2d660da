"""Kill the learner at each line of publishing a version: published versions are complete, and a retry succeeds."""

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from killed_lines import executed_lines, is_killed_at
from tiny_families import tiny_of

from stepstream.config import LearnerSettings, Settings
from stepstream.core.process import Stop
from stepstream.learner.lineage import Versions
from stepstream.learner.model.checkpoint import describe, folder_of, verify, write_root
from stepstream.learner.provenance import code_version
from stepstream.learner.publish import publish_version, remove_leftovers
from stepstream.learner.training.trainer import Trainer
from stepstream.topics.events import Checkpoint, new_checkpoint, new_update_input
from stepstream.topics.ids import new_event_id

pytest_plugins = ["memory_folder"]

PUBLISHING = (
    "learner/model/checkpoint.py", "learner/model/snapshot.py", "learner/publish.py", "learner/unfinished.py",
)  # fmt: skip


class Log:
    """A producer that writes its events to a file on flush."""

    def __init__(self, file: Path) -> None:
        self._file, self._queued = file, b""

    def __len__(self) -> int:
        return len(self._queued)

    def send(self, _topic: str, _key: str, record: Any) -> None:
        self._queued += orjson.dumps(record) + b"\n"

    def poll(self, _timeout_s: float) -> None:
        self.flush()

    def flush(self) -> None:
        with self._file.open("ab") as file:
            file.write(self._queued)
        self._queued = b""

    def events(self) -> list[Any]:
        return [orjson.loads(line) for line in self._file.read_bytes().splitlines()] if self._file.exists() else []


class Publication:
    """A trainer with a version to publish in its own folder."""

    def __init__(self, data: Path) -> None:
        code_version()  # cached: a forked child does not run its lines again
        self.data = data
        self.settings = Settings(learner=LearnerSettings(preset="tiny", model="m", checkpoints=str(data), lora_rank=2))
        self.root = data / "m/0"
        write_root(tiny_of("llama", data / "given"), self.root)
        self.trainer = Trainer(self.root, self.settings.learner)
        self.log = Log(data / "log")
        self.parent: Checkpoint = new_checkpoint(
            event_id="c0",
            occurred_at_us=0,
            model="m",
            version=0,
            uri=self.root.as_uri(),
            weights_sha256="",
            code_version="",
        )

    def publish(self) -> None:
        publish_version(
            self.settings, self.log, self.trainer.snapshot(), self.parent, self.root,  # type: ignore[arg-type]
            event_id=new_event_id(),
            inputs=[new_update_input(update=1, partitions=[0], offsets=[7])], resume_offsets={0: 8}, metrics={},
            stop=Stop(),
        )  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child takes no lock and exits at once
def test_a_kill_at_any_line_of_publishing_leaves_no_partial_version(memory_path: Path) -> None:
    publication = Publication(memory_path)
    lines = executed_lines(PUBLISHING, publication.publish)
    assert len(lines) > 60
    events = publication.log.events()
    (published,) = events
    expected = {file["path"]: file["sha256"] for file in published["files"]}
    for line in lines:
        (publication.data / "log").unlink()
        for event in events:
            shutil.rmtree(folder_of(event["uri"]), ignore_errors=True)
        assert is_killed_at(line, PUBLISHING, publication.publish)
        versions = Versions()
        for event in publication.log.events():
            versions.fold(event)
        remove_leftovers(publication.settings, versions)  # as the next owner does
        for event in publication.log.events():
            verify(folder_of(event["uri"]), event["files"])
            assert event["files"] == published["files"]
        named = {folder_of(event["uri"]).name for event in publication.log.events()}
        assert {path.name for path in publication.root.parent.iterdir()} == {"0"} | named, line
        publication.publish()  # as a restarted learner does
        events = publication.log.events()
        published = events[-1]
        assert {file["path"]: file["sha256"] for file in describe(folder_of(published["uri"]))} == expected, line
