"""Import a file, export it in every format and import the exports again: each trajectory counts once."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from log_reading import read_to_end
from stream_records import make_ending, make_steps
from waiting import wait_for_value

from stepstream.cli.datasets import FORMAT_NAMES
from stepstream.cli.main import run
from stepstream.config import Settings, environment_of
from stepstream.crypto.key_ring import sealing_codec
from stepstream.datasets import FORMATS, Episode, Origin
from stepstream.datasets.files import read_documents
from stepstream.datasets.parquet import read_documents as rows
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import connect
from stepstream.topics.producer import EventProducer

CHAT = Path(__file__).parents[1] / "data" / "datasets" / "chat.jsonl"
NOWHERE = Origin(dataset="", at_us=0)
LINES, STEPS = 3, 4


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("datasets")))
    with Stack(settings, ["broker", "registry", "store", "govern", "label", "store-writer"]) as running:
        yield running


@pytest.fixture
def settings(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in environment_of(stack.settings).items():
        monkeypatch.setenv(name, value)
    return stack.settings


@pytest.fixture
def ask(settings: Settings) -> Iterator[Callable[[str], Any]]:
    client = connect(settings, database=settings.clickhouse.database)
    yield lambda query: client.query(query).result_rows[0]
    client.close_connections()
    client.close()


def exported(name: str, where: str, out: Path, *more: str) -> list[Episode]:
    assert run(["export", "--format", name, "--where", where, "--out", str(out), *more]) == 0
    reader, documents = (FORMATS["rlds"], rows(out)) if name == "parquet" else (FORMATS[name], read_documents(out))
    return [episode for line in documents for episode in reader.read(line.document, NOWHERE)]


def label_revisions(settings: Settings) -> list[tuple[str, int]]:
    """Return (trajectory, revision) of every label so far, sorted."""
    with closing(sealing_codec(settings)) as codec:
        labels = [event.record for event in read_to_end(settings, codec, "labeled-trajectories")]
    return sorted((label["trajectory_id"], label["revision"]) for label in labels)


def test_importing_a_file_or_its_exports_again_adds_nothing(
    settings: Settings, ask: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["import", str(CHAT), "--format", "chat", "--consent", "train", "--agent", "filed", "--json"]
    for _ in range(2):
        assert run(arguments) == 0
        assert json.loads(capsys.readouterr().out) | {"left_out": []} == {
            "trajectories": LINES,
            "steps": STEPS,
            "feedback": 0,
            "bad": 0,
            "left_out": [],
            "published": True,
        }
    counts = "SELECT count(), sum(revision), sum(steps) FROM trajectories FINAL WHERE agent = 'filed'"
    step_count = "SELECT count() FROM steps FINAL WHERE agent = 'filed'"
    wait_for_value(lambda: ask(counts), (LINES, LINES, STEPS))
    wait_for_value(lambda: ask(step_count), (STEPS,))
    before = label_revisions(settings)
    files = {name: tmp_path / f"{name}.out" for name in FORMAT_NAMES}
    first, *others = [exported(name, "agent = 'filed'", file) for name, file in files.items()]
    assert len(first) == LINES
    assert all(other == first for other in others)
    for name, file in files.items():
        assert run(["import", str(file), "--format", name]) == 0
    # These trajectories follow the re-imported ones in the same partitions: once they are labelled, so are those.
    assert run([*arguments[:-1], "--dataset", "again"]) == 0
    again = [episode.trajectory_id for episode in first]
    wait_for_value(lambda: ask(counts), (2 * LINES, 2 * LINES, 2 * STEPS))
    assert [entry for entry in label_revisions(settings) if entry[0] in again] == before
    wait_for_value(lambda: ask(step_count), (2 * STEPS,))


def test_exports_have_tokens_on_request_and_only_consented_trajectories(
    settings: Settings, ask: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codec = sealing_codec(settings)
    producer = EventProducer(settings.kafka, codec, "test", linger_ms=0)
    sent = {name: make_steps(name, 3, agent="sampled", group_id="g") for name in ("yes", "count-only")}
    for step in sent["count-only"]:
        step["consent"] = "analyse"
    for name, steps in sent.items():
        for step in steps:
            producer.send("steps", name, step)
        producer.send("feedback", name, make_ending(name, 3))
    producer.flush()
    codec.close()
    wait_for_value(lambda: ask("SELECT count() FROM trajectories FINAL WHERE agent = 'sampled' AND success"), (2,))
    wait_for_value(lambda: ask("SELECT count() FROM steps FINAL WHERE agent = 'sampled'"), (6,))
    [complete] = exported("atif", "agent = 'sampled'", tmp_path / "a", "--with-tokens")
    assert complete == Episode(sent["yes"], [make_ending("yes", 3)], {0: 0.0, 1: 0.0, 2: 1.0})
    [without_tokens] = exported("parquet", "agent = 'sampled'", tmp_path / "b")
    assert [step["fidelity"] for step in without_tokens.steps] == ["text"] * 3
    assert [step["messages"] for step in without_tokens.steps] == [step["messages"] for step in sent["yes"]]
    assert len(exported("adp", "agent = 'sampled'", tmp_path / "c", "--for", "analyse")) == 2
    assert not exported("chat", "agent = 'nobody'", tmp_path / "d")
    assert run(["export", "--format", "chat", "--where", "no_such_column = 1", "--out", str(tmp_path / "e")]) == 1
    assert not (tmp_path / "e").exists()
    export = ["export", "--format", "chat", "--out", str(tmp_path / "g"), "--json"]
    assert run([*export, "--where", "agent = 'sampled') OR (1"]) == 2
    assert run([*export, "--where", "agent = 'sampled' OR agent = 'sampled') AND (1 -- both"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["trajectories"] == 1
    assert orjson.loads((tmp_path / "a").read_bytes())["steps"][-1]["metrics"]["logprobs"]


@pytest.mark.parametrize(("user", "agent"), [(None, None), ("ann", None), (None, "withdrawn"), ("ann", "withdrawn")])
def test_an_export_respects_a_withdrawn_consent_without_a_new_label(
    settings: Settings, ask: Callable[[str], Any], tmp_path: Path, user: str | None, agent: str | None
) -> None:
    tenant = f"{user}-{agent}"
    codec = sealing_codec(settings)
    producer = EventProducer(settings.kafka, codec, "test", linger_ms=0)
    for name, person in ((f"{tenant}/1", "ann"), (f"{tenant}/2", "bob")):
        for step in make_steps(name, 1, agent="withdrawn", tenant=tenant, user=person):
            producer.send("steps", name, step)
        producer.send("feedback", name, make_ending(name, 1, tenant=tenant))
    producer.flush()
    codec.close()
    where = f"tenant = '{tenant}'"
    wait_for_value(lambda: ask(f"SELECT count() FROM trajectories FINAL WHERE {where} AND success"), (2,))
    wait_for_value(lambda: ask(f"SELECT count() FROM steps FINAL WHERE {where}"), (2,))
    assert len(exported("chat", where, tmp_path / "before")) == 2
    with closing(connect(settings, database=settings.clickhouse.database)) as client:
        # In the table only: `label` does not read the change and revises nothing.
        row = ["e", tenant, tenant, user, agent, "analyse", datetime.now(UTC)]
        names = ["event_id", "key", "tenant", "user", "agent", "consent", "occurred_at"]
        client.insert("consents", [row], column_names=names)
    for_both = {(None, None), (None, "withdrawn")}
    expected = [] if (user, agent) in for_both else [f"{tenant}/2"]
    assert [episode.trajectory_id for episode in exported("chat", where, tmp_path / "after")] == expected
    assert len(exported("chat", where, tmp_path / "analyse", "--for", "analyse")) == 2
