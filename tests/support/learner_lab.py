"""Run a learner process with its own model on a shared broker, and produce its labelled trajectories."""

import urllib.request
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from labelled_records import group_of, labelled, tiny_model
from log_reading import read_to_end
from sample_records import checkpoint
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import wait_until

from stepstream.config import Settings, environment_of
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady
from stepstream.learner.lineage import Versions, read_versions
from stepstream.topics.codec import Codec
from stepstream.topics.producer import EventProducer

SIZE, GROUPS, UPDATES = 3, 2, 2
PER_VERSION = GROUPS * UPDATES
"""Groups that one version trains on."""


class LearnerLab:
    """One learner process with its model, producer and readers."""

    def __init__(self, settings: Settings, data: Path, under: Sequence[str] = ()) -> None:
        """Prepare the learner without starting it; `under` are Python's arguments before its module (a launcher)."""
        self.model = f"m{uuid.uuid4().hex[:8]}"
        port = free_block(1)
        self.settings = with_settings(
            settings,
            learner={
                "model": self.model,
                "checkpoints": str(data / "checkpoints"),
                "group_size": SIZE,
                "groups_per_update": GROUPS,
                "updates_per_checkpoint": UPDATES,
                "staleness_bound": 1000,
                "group_wait_s": 600.0,
            },
            metrics={"host": "127.0.0.1", "port": port},
        )
        self.base = tiny_model(data / "base")
        self.log = data / "learner.log"
        ready = HttpReady(f"http://127.0.0.1:{port}/metrics")
        self.learner = ServiceProcess("stepstream.learner", self.settings, ready, self.log, under=under)
        self._learners = [self.learner]
        self._codec = Codec(settings)
        self._producer = EventProducer(settings.kafka, self._codec, "test")

    def close(self) -> None:
        """Kill the learners that still run."""
        self._codec.close()
        for learner in self._learners:
            with suppress(AssertionError):  # never started
                if learner.status is None:
                    learner.kill()

    def share_memory(self) -> Path:
        """Let the learner, which is not started yet, share its versions; return the file system in memory."""
        memory = self.log.with_name("memory")
        memory.mkdir()
        self.settings = with_settings(
            self.settings, learner={"shared_memory_bytes": 1 << 30}, paths={"shared_memory": memory}
        )
        self.learner.settings = self.settings
        return memory

    def second_learner(self, log: Path) -> ServiceProcess:
        """Return another learner of the same model, which is not started yet."""
        port = free_block(1)
        settings = with_settings(self.settings, metrics={"host": "127.0.0.1", "port": port})
        ready = HttpReady(f"http://127.0.0.1:{port}/metrics")
        self._learners.append(ServiceProcess("stepstream.learner", settings, ready, log))
        return self._learners[-1]

    def produce(self, *groups: str, size: int = SIZE, **fields: Any) -> None:
        for group in groups:
            for record in group_of(group, size, model=self.model, **fields):
                self._producer.send("labeled-trajectories", f"{self.model}/{group}", record)
        self._producer.flush()

    def send(self, topic: str, key: str, record: Any) -> None:
        self._producer.send(topic, key, record)
        self._producer.flush(30.0)

    def produce_bytes(self, value: bytes) -> None:
        record = labelled("bad", 0, 1.0)
        self._producer.send_encoded("labeled-trajectories", self.model, value, record)
        self._producer.flush()

    def publish(self, **fields: Any) -> None:
        record = checkpoint(model=self.model, **fields)
        self._producer.send("checkpoints", f"{self.model}@{record['version']}", record)
        self._producer.flush()

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.settings.metrics.port}/metrics") as answer:
            return str(answer.read(), "utf-8")

    def series(self) -> dict[str, float]:
        """Return the learner's own metrics by name and labels."""
        lines = [line.rsplit(" ", 1) for line in self.metrics().splitlines() if line.startswith("stepstream_learner_")]
        return {name: float(value) for name, value in lines}

    def versions(self) -> Versions:
        return read_versions(self.settings.kafka, self._codec)

    def newest(self) -> int:
        newest = self.versions().newest(self.model)
        return -1 if newest is None else newest["version"]

    def wait_for(self, version: int) -> None:
        def published() -> bool:
            assert self.learner.status is None, self.learner.log_text
            return self.newest() >= version

        wait_until(published, f"version {version}")

    def trained(self, version: int) -> list[tuple[int, int]]:
        versions = self.versions()
        return [
            position
            for each in versions.lineage(versions.get(self.model, version))
            for update in each["inputs"]
            for position in zip(update["partitions"], update["offsets"], strict=True)
        ]

    def records(self, topic: str) -> dict[tuple[int, int], Any]:
        events = read_to_end(self.settings, self._codec, topic)
        return {(event.partition, event.offset): event.record for event in events}

    def own_records(self, topic: str) -> list[Any]:
        """Return the records about this model, each event once."""
        by_id = {record["event_id"]: record for record in self.records(topic).values()}
        return [record for record in by_id.values() if record["model"] == self.model]

    def cli(self, command: Any, *arguments: str) -> Any:
        return CliRunner().invoke(command, arguments, env=environment_of(self.settings))
