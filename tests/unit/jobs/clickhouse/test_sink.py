"""The `store` job sets aside the records whose rows ClickHouse refuses, and commits the offsets behind them."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from fold_harness import LocalCodec
from prometheus_client import REGISTRY
from sample_records import step, worker_status

from stepstream.config import Settings, StoreSettings
from stepstream.jobs import sink
from stepstream.jobs.clickhouse.columns import Row
from stepstream.jobs.clickhouse.rows import TABLES
from stepstream.jobs.runtime.fetch import Fetch, GroupMember
from stepstream.jobs.runtime.outputs import Output
from stepstream.jobs.runtime.record import Record

TOPIC = "governed-steps"
REASON = "does not fit the table steps (DataError)"


class RefusingInserter:
    """Refuses the rows of the agent `bad` in one table."""

    def __init__(self) -> None:
        self.inserted: list[tuple[str, Row]] = []
        self.lag_s: float | None = None
        self.age_s: float | None = None
        self.is_away = False
        self.rewritings: list[int] = []

    def insert(self, table: str, batch: Sequence[Row]) -> dict[int, str]:
        agent = TABLES["steps"].columns.index("agent")
        refused = {at: REASON for at, row in enumerate(batch) if table == "steps" and row[agent] == "bad"}
        self.inserted += [(table, row) for at, row in enumerate(batch) if at not in refused]
        return refused

    def refresh_lag_s(self) -> float | None:
        return self.lag_s

    def rewriting_age_s(self) -> float | None:
        return self.age_s

    def begin_rewriting(self, since_s: int) -> dict[str, int] | None:
        if self.is_away:
            return None
        self.rewritings.append(since_s)
        return {"steps": 1}


class ListPublisher:
    """Keeps what is committed."""

    def __init__(self) -> None:
        self.commits: list[tuple[Sequence[Output], list[Any]]] = []

    def settle(self, topic: str, member: GroupMember) -> None:
        pass

    def commit(self, outputs: Sequence[Output], offsets: list[Any], member: GroupMember) -> None:
        self.commits.append((outputs, offsets))


def process(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, *events: Any, topic: str = TOPIC
) -> tuple[list[Any], list[Any], RefusingInserter]:
    """Process events of a topic from offset 7; return the dead letters, the committed offsets and what was inserted."""
    codec, inserter, publisher = LocalCodec(), RefusingInserter(), ListPublisher()
    monkeypatch.setattr(sink, "sealing_codec", lambda *_, **__: codec)
    monkeypatch.setattr(sink, "Inserter", lambda *_: inserter)
    monkeypatch.setattr(sink, "TransactionalPublisher", lambda *_: publisher)
    processor = sink.SinkProcessor(settings, lambda: False)
    member = GroupMember("group", 1, "member", None)
    processor.open([0], member)
    values = [codec.encode(topic, one) for one in events]
    records = [Record(topic, 0, 7 + n, 1_760_000_000_000, b"t", value) for n, value in enumerate(values)]
    processor.process(Fetch(member, records, {(topic, 0): (7, 7 + len(events))}))
    [(outputs, offsets)] = publisher.commits
    return [codec.decode(output.topic, output.value) for output in outputs], offsets, inserter


def test_a_refused_record_is_a_dead_letter_with_its_place_and_the_others_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [step(f"t{n}", agent=agent) for n, agent in enumerate(("good", "bad", "good"))]
    [letter], [offset], inserter = process(monkeypatch, Settings(), *steps)
    assert (offset.topic, offset.partition, offset.offset) == (TOPIC, 0, 10)
    assert (letter["topic"], letter["partition"], letter["offset"]) == (TOPIC, 0, 8)
    assert (letter["error"], letter["reason"], letter["tenant"]) == ("invalid", REASON, "default")
    assert [table for table, _ in inserter.inserted].count("steps") == 2


def looking(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> tuple[sink.SinkProcessor, RefusingInserter]:
    """Return a processor that looks at the store at each tick."""
    inserter = RefusingInserter()
    monkeypatch.setattr(sink, "sealing_codec", lambda *_, **__: LocalCodec())
    monkeypatch.setattr(sink, "Inserter", lambda *_: inserter)
    monkeypatch.setattr(sink, "TransactionalPublisher", lambda *_: ListPublisher())
    monkeypatch.setattr(sink, "_LOOK_EVERY_S", 0)
    return sink.SinkProcessor(settings, lambda: False), inserter


def test_a_rewriting_begins_once_in_each_interval_when_the_store_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    midnight_s = 20_000 * 86_400
    processor, inserter = looking(monkeypatch, Settings())
    for passed_s, is_away in ((5, True), (15, False), (86_399, False), (86_400, False), (90_000, False)):
        monkeypatch.setattr(time, "time", lambda passed_s=passed_s: midnight_s + passed_s)
        inserter.is_away = is_away
        processor.tick()
    assert inserter.rewritings == [midnight_s, midnight_s + 86_400]


def test_no_rewriting_begins_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    processor, inserter = looking(monkeypatch, Settings(store=StoreSettings(rewrite_hours=0)))
    processor.tick()
    assert inserter.rewritings == []


def test_the_age_of_the_rollups_is_exported_and_stays_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    processor, inserter = looking(monkeypatch, Settings())
    for lag_s, exported in ((130.0, 130.0), (None, 130.0), (4.0, 4.0)):
        inserter.lag_s = lag_s
        processor.tick()
        assert REGISTRY.get_sample_value("stepstream_store_refresh_lag_seconds") == exported


def test_the_age_of_a_rewriting_is_exported_and_stays_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    processor, inserter = looking(monkeypatch, Settings())
    for age_s, exported in ((30_000.0, 30_000.0), (None, 30_000.0), (0.0, 0.0)):
        inserter.age_s = age_s
        processor.tick()
        assert REGISTRY.get_sample_value("stepstream_store_rewriting_age_seconds") == exported


def test_a_record_older_than_its_table_keeps_rows_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(store=StoreSettings(contents_days=30))
    now_us = int(time.time() * 1_000_000)
    [letter], _, inserter = process(monkeypatch, settings, step("old"), step("new", at_us=now_us))
    assert (letter["offset"], letter["error"]) == (7, "expired")
    assert "step_contents" in letter["reason"]
    assert sorted(table for table, _ in inserter.inserted) == ["step_contents", "steps", "steps"]


def test_the_row_of_a_status_has_the_time_at_which_the_broker_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    status = worker_status("w", at_us=1)  # the clock of the worker is behind
    _, _, inserter = process(monkeypatch, Settings(), status, topic="worker-status")
    [(table, row)] = inserter.inserted
    found = dict(zip(TABLES[table].columns, row, strict=True))
    assert (found["occurred_at"], found["written_at"]) == (1, 1_760_000_000_000_000)
