"""Read the log, state folders, spool and checkpoint that the version before the package layout wrote."""

import base64
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fold_harness import LocalCodec
from label_runs import FixedPolicies, label_settings
from labelled_records import attempt, group_of

from stepstream.config import LearnerSettings
from stepstream.delivery.spool import Spool
from stepstream.jobs.governance import JOB as GOVERN
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold
from stepstream.jobs.labels import JOB as LABEL
from stepstream.jobs.labels import publish
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.spec_lookup import FixedSpec
from stepstream.jobs.runtime.fold import Fold
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import PartitionState
from stepstream.schemas import schema
from stepstream.topics.catalogue import TOPICS

ARCHIVE = Path(__file__).parents[1] / "data/previous_version/data.tar.gz"
LOG_IDENTITY = "log-1"
WRITTEN_AT_MS = 1_760_000_100_000


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A fresh copy of the data."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def read_log(written: Path) -> list[tuple[str, str, Any]]:
    """Return (topic, key, record) of the log, read with the writer's schema and today's."""
    log = json.loads((written / "log.json").read_text())
    records = []
    for entry in log["records"]:
        topic, value = entry["topic"], base64.b64decode(entry["value"])
        records.append((topic, entry["key"], read_as_current(topic, log["schemas"][topic], value)))
    return records


class CodecOfTwoVersions(LocalCodec):
    """Reads what it wrote itself with today's schemas, other bytes with the previous version's as writer's schemas.

    In the wire format the schema's id decides; the data in the archive has no ids.
    """

    def __init__(self, written: Path) -> None:
        super().__init__()
        self._schemas = json.loads((written / "log.json").read_text())["schemas"]
        self._own: set[bytes] = set()

    def encode(self, topic: str, record: Any, *, whole: bool = False) -> bytes:
        encoded = super().encode(topic, record, whole=whole)
        self._own.add(encoded)
        return encoded

    def decode(self, topic: str, value: bytes | None) -> Any:
        if value is None or value in self._own:
            return super().decode(topic, value)
        return read_as_current(topic, self._schemas[topic], value)


def read_as_current(topic: str, writer: Any, value: bytes) -> Any:
    """Return a record that another schema wrote, in the shape of today's."""
    reader = fastavro.parse_schema(schema(TOPICS[topic].schema))
    return fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(writer), reader)


def fold(
    job: str, fold: Fold, state: PartitionState, codec: LocalCodec, events: Sequence[tuple[str, str, Any]]
) -> list[tuple[str, Any]]:
    """Fold events behind the state's position; return (topic, record) of each output."""
    changes = state.begin()
    out = Outputs(job, codec, lambda call: call())  # type: ignore[arg-type]
    offsets = dict(state.position)
    for topic, key, event in events:
        offset = offsets.get(topic, 0)
        offsets[topic] = offset + 1
        record = Record(topic, 0, offset, WRITTEN_AT_MS, key.encode(), codec.encode(topic, event))
        fold.apply(record, codec.decode(topic, record.value), changes, out)
    fold.end_batch(changes, out)
    state.write(changes, offsets, WRITTEN_AT_MS)
    return [(event.topic, codec.decode(event.topic, event.value)) for event in out.events]


def test_a_trajectory_that_the_previous_version_began_gets_the_same_label(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = read_log(written)
    governed = [entry for entry in log if entry[0].startswith("governed-")]
    (expected,) = [event for topic, _, event in log if topic == "labeled-trajectories"]
    state = PartitionState(written / "label-state")
    assert (state.identity, state.position) == (LOG_IDENTITY, {"governed-steps": 2})
    codec = CodecOfTwoVersions(written)
    label = LabelFold(
        state,
        FixedSpec(RewardSpec()),
        codec,
        FixedPolicies(),
        label_settings(),
    )
    monkeypatch.setattr(publish, "JOB", expected["labelled_by"])  # names and ids of labels are of the job's version
    expected["opened_at_us"] = expected["started_at_us"]  # the previous version did not write it
    assert fold(LABEL, label, state, codec, governed[2:]) == [("labeled-trajectories", expected)]
    state.close()


def test_records_that_the_previous_version_governed_are_duplicates(written: Path) -> None:
    sources = [entry for entry in read_log(written) if entry[0] in ("steps", "feedback")]
    assert len(sources) == 4
    state = PartitionState(written / "govern-state")
    assert (state.identity, state.position) == (LOG_IDENTITY, {"steps": 3, "feedback": 1})
    occurred_us = max(event["occurred_at_us"] for _, _, event in sources)
    govern = GovernFold(
        ActivePolicies(b"key", {}, {}), dedup_days=7, max_future_s=300.0, now_us=lambda: occurred_us + 1
    )
    outputs = fold(GOVERN, govern, state, LocalCodec(), sources)
    assert [(topic, event["action"]) for topic, event in outputs] == [("governance-audit", "duplicate")] * 4
    state.close()


def test_records_governed_anew_are_those_of_the_previous_version(written: Path, tmp_path: Path) -> None:
    log = read_log(written)
    sources = [entry for entry in log if entry[0] in ("steps", "feedback")]
    expected = [(topic, event) for topic, _, event in log if topic.startswith("governed-")]
    state = PartitionState(tmp_path / "empty-state")
    state.reset(LOG_IDENTITY)
    occurred_us = max(event["occurred_at_us"] for _, _, event in sources)
    govern = GovernFold(
        ActivePolicies(b"key", {}, {}), dedup_days=7, max_future_s=300.0, now_us=lambda: occurred_us + 1
    )
    assert fold(GOVERN, govern, state, LocalCodec(), sources) == expected
    state.close()


def test_events_in_a_spool_of_the_previous_version_are_sent(written: Path) -> None:
    steps = [event for topic, _, event in read_log(written) if topic == "steps"]
    lost: list[int] = []
    spool = Spool(written / "spool", 1 << 20, lost.append)
    entries = [entry for entry, _ in spool.read(1 << 20)]
    assert [entry.event_id for entry in entries] == [step["event_id"] for step in steps]
    assert [entry.headers for entry in entries] == [{"n": str(number)} for number in range(3)]
    for entry, step in zip(entries, steps, strict=True):
        assert read_as_current("steps", json.loads(entry.schema), entry.body) == step
    assert lost == []
    spool.close()


def test_a_checkpoint_of_the_previous_version_is_verified_and_trained_on(written: Path) -> None:
    from stepstream.learner.model.checkpoint import verify  # imports torch, which takes seconds
    from stepstream.learner.training.trainer import Trainer

    files = json.loads((written / "checkpoints.json").read_text())
    for version in ("0", "1"):
        verify(written / "checkpoints" / version, files[version])
    trainer = Trainer(written / "checkpoints/1", LearnerSettings(preset="tiny", warmup_updates=0))
    stats = trainer.update(2, [[attempt(record) for record in group_of("g2", 4, seed=2)]], version=0)
    assert stats["grad_norm"] > 0
