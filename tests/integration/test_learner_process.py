"""The learner as a process on a real broker: killed in mid-run, resumed, rebuilt, moved to a new lineage."""

import shutil
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from labelled_records import group_of, labelled, tiny_model
from sample_records import checkpoint
from service_process import ServiceProcess, until
from stack_fixtures import changed

from stepstream.cli.models import models, rebuild
from stepstream.config import Settings, environment_of
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady
from stepstream.learner.checkpoint import folder_of
from stepstream.learner.lineage import Versions, read_versions
from stepstream.learner.publish import publish_root
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import new_update_input
from stepstream.topics.producer import EventProducer

SIZE, GROUPS, UPDATES = 3, 2, 2
PER_VERSION = GROUPS * UPDATES
"""Groups in one version."""


class Lab:
    """A model of its own on the shared broker, its learner, and agents' labelled trajectories."""

    def __init__(self, settings: Settings, data: Path) -> None:
        self.model = f"m{uuid.uuid4().hex[:8]}"
        port = free_block(1)
        self.settings = changed(
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
        self.learner = ServiceProcess("stepstream.learner", self.settings, ready, self.log)
        self._codec = Codec(settings.schema_registry)
        self._producer = EventProducer(settings.kafka, self._codec, "test")

    def close(self) -> None:
        self._codec.close()

    def produce(self, *groups: str, size: int = SIZE, **fields: Any) -> None:
        for group in groups:
            for record in group_of(group, size, model=self.model, **fields):
                self._producer.send("labeled-trajectories", f"{self.model}/{group}", record)
        self._producer.flush()

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

    def versions(self) -> Versions:
        return read_versions(self.settings.kafka, self._codec)

    def newest(self) -> int:
        newest = self.versions().newest(self.model)
        return -1 if newest is None else newest["version"]

    def wait_for(self, version: int) -> None:
        def published() -> bool:
            assert self.learner.status is None, self.learner.said
            return self.newest() >= version

        until(published, timeout=90.0, step=0.1)

    def trained(self, version: int) -> list[tuple[int, int]]:
        versions = self.versions()
        return [
            place
            for each in versions.lineage(versions.get(self.model, version))
            for update in each["inputs"]
            for place in zip(update["partitions"], update["offsets"], strict=True)
        ]

    def records(self, topic: str) -> dict[tuple[int, int], Any]:
        found = {}
        with EventConsumer(self.settings.kafka, self._codec) as consumer:
            consumer.follow([topic])
            while not consumer.caught_up():
                found |= {(event.partition, event.offset): event.record for event in consumer.poll(500, 0.2)}
        return found

    def folded(self, topic: str) -> list[Any]:
        """The records about this model, each event once."""
        found = {record["event_id"]: record for record in self.records(topic).values()}
        return [record for record in found.values() if record["model"] == self.model]

    def cli(self, command: Any, *arguments: str) -> Any:
        return CliRunner().invoke(command, arguments, env=environment_of(self.settings))


@pytest.fixture
def lab(registry_settings: Settings, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(registry_settings, tmp_path)
    yield made
    made.close()
    with suppress(AssertionError):  # never started
        if made.learner.status is None:
            made.learner.kill()


def test_killed_in_mid_run_it_trains_nothing_twice_and_every_version_rebuilds(lab: Lab) -> None:
    publish_root(lab.settings, lab.base, lab.model)
    names = [f"g{number}" for number in range(8 * PER_VERSION)]
    lab.produce(*names[: 4 * PER_VERSION + 1])
    lab.learner.start(120.0)
    lab.wait_for(2)
    lab.learner.kill()
    killed_at = lab.newest()
    # The label job, killed as well, delivers again what it had not committed; then agents go on.
    lab.produce(*names[: 2 * PER_VERSION])
    lab.produce(*names[4 * PER_VERSION + 1 :])
    lab.produce_bytes(b"\x00not a record")
    lab.learner.start(120.0)
    lab.wait_for(8)
    assert killed_at < 8
    assert lab.learner.stop() == 0

    trained = lab.trained(8)
    records = lab.records("labeled-trajectories")
    identities = [records[place]["trajectory_id"] for place in trained]
    assert len(trained) == len(set(trained)) == len(identities) == len(set(identities))
    assert set(identities) == {f"{name}/{n}" for name in names for n in range(SIZE)}
    letters = [letter for letter in lab.records("dead-letters").values() if letter["key"] == lab.model.encode()]
    assert [(letter["job"], letter["error"], letter["value"]) for letter in letters] == [
        ("learner@1", "unknown_schema", b"\x00not a record")
    ]

    decisions = lab.folded("training-decisions")
    told = {(one["trajectory_id"], one["outcome"]) for one in decisions}
    assert told == {(name, "trained") for name in identities}
    assert len(decisions) == len(identities)
    assert {(one["partition"], one["offset"]) for one in decisions} == set(trained)
    assert {one["checkpoint_version"] for one in decisions} == set(range(1, 9))
    updates = {update["update"]: update for update in lab.folded("learner-updates")}
    assert sorted(updates) == list(range(1, 8 * UPDATES + 1))
    for update in updates.values():
        assert update["trajectories"] == GROUPS * SIZE
        assert sum(lag["tokens"] for lag in update["lags"]) == update["figures"]["tokens"]
        assert update["seconds"]["train"] > 0

    for version in range(1, 9):
        assert lab.cli(rebuild, f"{lab.model}@{version}").exit_code == 0
    shutil.rmtree(folder_of(lab.versions().get(lab.model, 7)["uri"]))
    answer = lab.cli(rebuild, f"{lab.model}@latest", "--json")
    assert answer.exit_code == 0, answer.output


def test_a_group_that_was_given_up_is_not_waited_for_again(lab: Lab) -> None:
    lab.settings = changed(lab.settings, learner={"group_wait_s": 0.5})
    lab.learner.settings = lab.settings
    publish_root(lab.settings, lab.base, lab.model)
    lab.produce("half", size=1)
    lab.learner.start(120.0)
    until(lambda: len(lab.folded("training-decisions")) == 1, timeout=60.0)
    lab.learner.kill()
    lab.produce("half", "g0", "g1", "g2", "g3")
    lab.learner.start(120.0)
    lab.wait_for(1)
    until(lambda: len(lab.folded("training-decisions")) == SIZE * (1 + PER_VERSION), timeout=60.0)
    decisions = {(one["trajectory_id"], one["reason"]) for one in lab.folded("training-decisions")}
    assert {one for one in decisions if one[1]} == {
        ("half/0", "group_incomplete"),
        ("half/1", "group_over"),
        ("half/2", "group_over"),
    }


def test_a_new_root_begins_a_new_lineage_while_it_runs(lab: Lab) -> None:
    lab.learner.start(120.0)
    until(lambda: "waiting for a first version" in lab.learner.said)
    publish_root(lab.settings, lab.base, lab.model)
    lab.produce(*(f"old{n}" for n in range(PER_VERSION + 1)))
    lab.wait_for(1)
    answer = lab.cli(models, "publish", str(lab.base), "--model", lab.model, "--json")
    assert answer.exit_code == 0, answer.output
    lab.produce(*(f"stale{n}" for n in range(PER_VERSION)), versions=(1, 1))
    lab.produce(*(f"new{n}" for n in range(PER_VERSION)), versions=(2, 2))
    lab.wait_for(3)
    versions = lab.versions()
    assert versions.get(lab.model, 2)["parent_version"] is None
    assert versions.get(lab.model, 3)["parent_version"] == 2
    records = lab.records("labeled-trajectories")
    assert {records[place]["group_id"] for place in lab.trained(3)} == {f"new{n}" for n in range(PER_VERSION)}
    assert lab.cli(rebuild, f"{lab.model}@2").output.startswith(f"{lab.model}@2 is the root of its lineage")
    assert f"{lab.model}@3" in lab.cli(models, "list").output
    assert "stepstream_learner_version 3.0" in lab.metrics()
    assert (
        f'stepstream_learner_trajectories_dropped_total{{reason="other_lineage"}} {PER_VERSION * SIZE}.0'
        in lab.metrics()
    )

    lab.publish(version=4, parent_version=3)
    until(lambda: lab.learner.status is not None, timeout=60.0)
    assert lab.learner.status == 1
    assert f"{lab.model}@4 was published by another learner" in lab.learner.said.splitlines()[-1]


def test_faults_are_told_by_name(lab: Lab) -> None:
    publish_root(lab.settings, lab.base, lab.model)
    unknown = lab.cli(rebuild, f"{lab.model}@7")
    assert (unknown.exit_code, unknown.output) == (1, f"Error: no version {lab.model}@7; there are 0\n")
    assert "no model 'unheard' was ever published" in lab.cli(rebuild, "unheard@latest").output
    assert lab.cli(rebuild, "demo").exit_code == 2
    folder = folder_of(lab.versions().get(lab.model, 0)["uri"])
    (folder / "config.json").write_text("{}")
    assert f"{folder}/config.json is not the file that was published" in lab.cli(rebuild, f"{lab.model}@0").output


def test_a_log_that_lacks_what_the_model_was_trained_on_is_refused(lab: Lab) -> None:
    root = publish_root(lab.settings, lab.base, lab.model)
    inputs = [new_update_input(update=1, partitions=[0], offsets=[10**9])]
    lab.publish(version=1, parent_version=0, uri=root["uri"], files=root["files"], inputs=inputs)
    lab.learner.launch()
    until(lambda: lab.learner.status is not None, timeout=60.0)
    assert lab.learner.status == 1
    assert "partition 0 offset 1000000000, which this cluster does not have" in lab.learner.said.splitlines()[-1]
