"""A file into the log and out of the tables again, in every format, and back in: each trajectory once in effect."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from stream_records import make_ending, make_steps
from waiting import comes_to

from stepstream.cli.datasets import NAMES
from stepstream.cli.main import run
from stepstream.config import Settings, environment_of
from stepstream.crypto.key_ring import codec_of
from stepstream.datasets import FORMATS, Episode, Origin
from stepstream.datasets.files import documents
from stepstream.datasets.parquet import documents as rows
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import connect
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.producer import EventProducer

CHAT = Path(__file__).parents[1] / "data" / "datasets" / "chat.jsonl"
NOWHERE = Origin(dataset="", at_us=0)
LINES, STEPS = 3, 4


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings, with_topics: Callable[[Settings], Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    settings = with_topics(isolated(base_settings, tmp_path_factory.mktemp("datasets")))
    with Stack(settings, ["broker", "registry", "store", "govern", "label", "store-writer"]) as running:
        yield running


@pytest.fixture
def settings(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in environment_of(stack.settings).items():
        monkeypatch.setenv(name, value)
    return stack.settings


@pytest.fixture
def ask(settings: Settings) -> Iterator[Callable[[str], Any]]:
    client = connect(settings.clickhouse, database=settings.clickhouse.database)
    yield lambda query: client.query(query).result_rows[0]
    client.close_connections()
    client.close()


def exported(name: str, where: str, out: Path, *more: str) -> list[Episode]:
    assert run(["export", "--format", name, "--where", where, "--out", str(out), *more]) == 0
    form, places = (FORMATS["rlds"], rows(out)) if name == "parquet" else (FORMATS[name], documents(out))
    return [episode for place in places for episode in form.read(place.document, NOWHERE)]


def labelled(settings: Settings) -> list[tuple[str, int]]:
    """Every revision of every label so far, in order."""
    codec, found = codec_of(settings), []
    with EventConsumer(settings.kafka, codec) as consumer:
        consumer.follow(["labeled-trajectories"])
        while not consumer.caught_up():
            found += [(e.record["trajectory_id"], e.record["revision"]) for e in consumer.poll(1000, 1.0)]
    codec.close()
    return sorted(found)


def test_a_file_is_labelled_once_and_every_export_brings_back_nothing_new(
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
    comes_to(lambda: ask(counts), (LINES, LINES, STEPS))
    assert ask("SELECT count() FROM steps FINAL WHERE agent = 'filed'") == (STEPS,)
    before = labelled(settings)
    files = {name: tmp_path / f"{name}.out" for name in NAMES}
    first, *others = [exported(name, "agent = 'filed'", file) for name, file in files.items()]
    assert len(first) == LINES
    assert all(other == first for other in others)
    for name, file in files.items():
        assert run(["import", str(file), "--format", name]) == 0
    # What comes after them in the same partitions has gone through: so have they.
    assert run([*arguments[:-1], "--dataset", "again"]) == 0
    again = [episode.trajectory_id for episode in first]
    comes_to(lambda: ask(counts), (2 * LINES, 2 * LINES, 2 * STEPS))
    assert [entry for entry in labelled(settings) if entry[0] in again] == before
    assert ask("SELECT count() FROM steps FINAL WHERE agent = 'filed'") == (2 * STEPS,)


def test_tokens_come_from_the_log_and_consent_decides_who_gets_what(
    settings: Settings, ask: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codec = codec_of(settings)
    producer = EventProducer(settings.kafka, codec, "test", linger_ms=0)
    told = {name: make_steps(name, 3, agent="told", group_id="g") for name in ("yes", "count-only")}
    for step in told["count-only"]:
        step["consent"] = "analyse"
    for name, steps in told.items():
        for step in steps:
            producer.send("steps", name, step)
        producer.send("feedback", name, make_ending(name, 3))
    producer.flush()
    codec.close()
    comes_to(lambda: ask("SELECT count() FROM trajectories FINAL WHERE agent = 'told' AND success"), (2,))
    comes_to(lambda: ask("SELECT count() FROM steps FINAL WHERE agent = 'told'"), (6,))
    [whole] = exported("atif", "agent = 'told'", tmp_path / "a", "--with-tokens")
    assert whole == Episode(told["yes"], [make_ending("yes", 3)], {0: 0.0, 1: 0.0, 2: 1.0})
    [bare] = exported("parquet", "agent = 'told'", tmp_path / "b")
    assert [step["fidelity"] for step in bare.steps] == ["text"] * 3
    assert [step["messages"] for step in bare.steps] == [step["messages"] for step in told["yes"]]
    assert len(exported("adp", "agent = 'told'", tmp_path / "c", "--for", "analyse")) == 2
    assert not exported("chat", "agent = 'nobody'", tmp_path / "d")
    assert run(["export", "--format", "chat", "--where", "no_such_column = 1", "--out", str(tmp_path / "e")]) == 1
    assert not (tmp_path / "e").exists()
    around = ["export", "--format", "chat", "--out", str(tmp_path / "g"), "--json"]
    assert run([*around, "--where", "agent = 'told') OR (1"]) == 2
    assert run([*around, "--where", "agent = 'told' OR agent = 'told') AND (1 -- both"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["trajectories"] == 1
    assert orjson.loads((tmp_path / "a").read_bytes())["steps"][-1]["metrics"]["logprobs"]


@pytest.mark.parametrize(("user", "agent"), [(None, None), ("ann", None), (None, "withdrawn"), ("ann", "withdrawn")])
def test_a_consent_that_was_withdrawn_holds_for_labels_that_are_not_revised_any_more(
    settings: Settings, ask: Callable[[str], Any], tmp_path: Path, user: str | None, agent: str | None
) -> None:
    tenant = f"{user}-{agent}"
    codec = codec_of(settings)
    producer = EventProducer(settings.kafka, codec, "test", linger_ms=0)
    for name, person in ((f"{tenant}/1", "ann"), (f"{tenant}/2", "bob")):
        for step in make_steps(name, 1, agent="withdrawn", tenant=tenant, user=person):
            producer.send("steps", name, step)
        producer.send("feedback", name, make_ending(name, 1, tenant=tenant))
    producer.flush()
    codec.close()
    where = f"tenant = '{tenant}'"
    comes_to(lambda: ask(f"SELECT count() FROM trajectories FINAL WHERE {where} AND success"), (2,))
    comes_to(lambda: ask(f"SELECT count() FROM steps FINAL WHERE {where}"), (2,))
    assert len(exported("chat", where, tmp_path / "before")) == 2
    with closing(connect(settings.clickhouse, database=settings.clickhouse.database)) as client:
        # Not on the topic, so that `label` does not revise them: as if it had forgotten them.
        row = ["e", tenant, tenant, user, agent, "analyse", datetime.now(UTC)]
        names = ["event_id", "key", "tenant", "user", "agent", "consent", "occurred_at"]
        client.insert("consents", [row], column_names=names)
    by_all = {(None, None), (None, "withdrawn")}
    left = [] if (user, agent) in by_all else [f"{tenant}/2"]
    assert [episode.trajectory_id for episode in exported("chat", where, tmp_path / "after")] == left
    assert len(exported("chat", where, tmp_path / "analyse", "--for", "analyse")) == 2
