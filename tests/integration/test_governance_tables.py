"""Governance in ClickHouse: consent that changed later holds for stored steps, and what is deleted is really gone."""

from collections.abc import Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from sample_records import SAMPLES, T0_US, feedback, step, trajectory

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.jobs.erasure.delete_from_tables import delete_rows, own_of, rows_left, trajectories_of
from stepstream.jobs.erasure.find_records import Person
from stepstream.topics.events import new_consent_change, new_governance

ADA = Person("default", "ada'; --")


@pytest.fixture(scope="module")
def settings(store_settings: Settings) -> Settings:
    own = store_settings.clickhouse.model_copy(update={"database": "governance"})
    return store_settings.model_copy(update={"clickhouse": own})


@pytest.fixture(scope="module")
def inserter(settings: Settings) -> Iterator[Inserter]:
    migrate(settings)
    made = Inserter(settings.clickhouse, lambda: False)
    yield made
    made.close()


@pytest.fixture
def client(settings: Settings, inserter: Inserter) -> Iterator[Client]:
    with connection.connect(settings.clickhouse, database="governance") as client:
        for table in TABLES:
            client.command(f"TRUNCATE TABLE {table}")
        yield client


def put(inserter: Inserter, topic: str, *records: Any) -> None:
    for record in records:
        for table, row in rows(topic, record):
            assert inserter.insert(table, [row]) == []


def said(level: Any, at: int = 0, **about: Any) -> Any:
    """What was said about a tenant, a person or an agent."""
    named = {"tenant": "default"} | about
    return new_consent_change(event_id=f"{about}{at}", occurred_at_us=T0_US + at, consent=level, **named)


def test_consent_that_changed_later_holds_for_stored_steps(client: Client, inserter: Inserter) -> None:
    put(inserter, "governed-steps", *(step(name, user=name, agent="coder") for name in ("ada", "bob", "eve")))
    put(inserter, "governed-steps", step("mute", agent="writer"), step("other", user="bob", tenant="else"))
    put(inserter, "governed-steps", step("told", user="bob", consent="analyse", agent="x"))
    put(inserter, "consents", said("none", user="ada"), said("train", user="ada", at=-1))
    put(inserter, "consents", said("train"), said("analyse", agent="coder"), said("none", user="eve", agent="coder"))
    found = client.query("SELECT trajectory_id, consent FROM step_consents").result_rows
    expected = {"ada": "none", "bob": "analyse", "eve": "none", "mute": "train", "other": "train", "told": "analyse"}
    assert sorted(map(tuple, found)) == sorted(expected.items())


def test_of_two_results_for_one_event_the_newer_policy_counts(client: Client, inserter: Inserter) -> None:
    for version, consent in ((0, "train"), (2, "analyse"), (1, "train")):
        stamp = new_governance(source_event_id="s", job="govern@1", policy_version=version)
        put(inserter, "governed-steps", step("t", event_id=f"g{version}", governed=stamp, consent=consent))
    assert client.query("SELECT event_id, consent FROM step_consents").result_rows == [("g2", "analyse")]


def test_finds_are_counted_by_rule_however_often_they_are_told(client: Client, inserter: Inserter) -> None:
    put(inserter, "governance-audit", *[SAMPLES["governance-audit"]] * 3)
    found = client.query("SELECT rule, records, finds FROM audit_counts ORDER BY rule").result_rows
    assert found == [("card", 1, 1), ("email", 1, 2)]


def test_a_persons_rows_are_deleted_and_nobody_elses(client: Client, inserter: Inserter) -> None:
    for name, user in (("a", ADA.user), ("b", "bob")):
        put(inserter, "governed-steps", *(step(f"{name}{n}", user=user) for n in range(3)))
        put(inserter, "governed-feedback", feedback(event_id=name, user=user, trajectory_id=f"{name}0"))
        put(inserter, "labeled-trajectories", *(trajectory(f"{name}{n}", user=user) for n in range(3)))
    put(inserter, "governed-steps", step("else", user=ADA.user, tenant="else"))
    put(inserter, "consents", said("train", user=ADA.user) | {"event_id": "c"})
    # She may say something about anybody's trajectory, and another tenant may name one as hers: these stay.
    put(inserter, "governed-feedback", feedback(event_id="said", user=ADA.user, trajectory_id="theirs"))
    put(inserter, "labeled-trajectories", trajectory("theirs", user=None, tenant="else"))
    put(inserter, "governed-steps", step("a1", 1, user=None, tenant="else"))
    trajectories = trajectories_of(client, ADA)
    own = own_of(client, ADA)
    assert (trajectories, own) == ({"a0", "a1", "a2", "theirs"}, {"a0", "a1", "a2"})
    # Steps, feedback, consent; of the trajectories each with its one step and that one's two components.
    assert delete_rows(client, ADA, trajectories, own) == 3 + 2 + 1 + 3 * (1 + 1 + 2)
    assert rows_left(client, ADA, own) == 0
    assert delete_rows(client, ADA, trajectories, own) == 0
    counts = [client.query(f"SELECT count() FROM {table}").result_rows[0][0] for table in ("steps", "trajectories")]
    assert counts == [5, 4]
    # Physically: the active parts hold as many rows as there are, and no statement that names her is kept.
    held = "SELECT sum(rows) FROM system.parts WHERE active AND database = 'governance' AND table = 'steps'"
    assert client.query(held).result_rows == [(5,)]
    kept = client.query("SELECT command FROM system.mutations WHERE database = 'governance'").result_rows
    assert any("'a1'" in command for (command,) in kept)
    assert not any("ada" in command for (command,) in kept)


def test_a_consent_that_is_deleted_from_its_topic_goes_from_the_table(client: Client, inserter: Inserter) -> None:
    put(inserter, "consents", said("train", user="ada"), said("none", user="bob"))
    inserter.delete("consents", "key", "default/ada/*")
    assert client.query("SELECT key FROM consents").result_rows == [("default/bob/*",)]
