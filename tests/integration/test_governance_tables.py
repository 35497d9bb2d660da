"""Test governance in ClickHouse: later consents apply to stored steps, and deleted rows leave no data."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from sample_records import SAMPLES, T0_US, feedback, step, trajectory

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.jobs.erasure import delete_from_tables
from stepstream.jobs.erasure.delete_from_tables import (
    PersonTrajectories,
    Target,
    count_rows,
    delete_rows,
    remove_hidden,
    trajectories_of,
)
from stepstream.jobs.erasure.findings import Person
from stepstream.jobs.erasure.request import ErasureRequest
from stepstream.topics.events import new_consent_change, new_governance

DAY_US = 86_400_000_000
ADA, ZOE = Person("default", "ada'; --"), Person("default", "zoe\t\\")


@pytest.fixture(scope="module")
def settings(own_database: Callable[[str], Settings]) -> Settings:
    return own_database("governance")


@pytest.fixture(scope="module")
def inserter(settings: Settings) -> Iterator[Inserter]:
    migrate(settings)
    made = Inserter(settings, lambda: False)
    yield made
    made.close()


@pytest.fixture
def client(settings: Settings, inserter: Inserter) -> Iterator[Client]:
    with connection.connect(settings, database="governance") as client:
        for table in TABLES:
            client.command(f"TRUNCATE TABLE {table}")
        yield client


def put(inserter: Inserter, topic: str, *records: Any) -> None:
    for record in records:
        for table, row in rows(topic, record):
            assert inserter.insert(table, [row]) == {}


def consent_change(level: Any, at: int = 0, **subject: Any) -> Any:
    """Return a consent change of a tenant, a person or an agent."""
    fields = {"tenant": "default"} | subject
    return new_consent_change(event_id=f"{subject}{at}", occurred_at_us=T0_US + at, consent=level, **fields)


def test_a_later_consent_applies_to_stored_steps(client: Client, inserter: Inserter) -> None:
    put(inserter, "governed-steps", *(step(name, user=name, agent="coder") for name in ("ada", "bob", "eve")))
    put(inserter, "governed-steps", step("mute", agent="writer"), step("other", user="bob", tenant="else"))
    put(inserter, "governed-steps", step("strict", user="bob", consent="analyse", agent="x"))
    put(inserter, "consents", consent_change("none", user="ada"), consent_change("train", user="ada", at=-1))
    put(
        inserter,
        "consents",
        consent_change("train"),
        consent_change("analyse", agent="coder"),
        consent_change("none", user="eve", agent="coder"),
    )
    found = client.query("SELECT trajectory_id, consent FROM step_consents").result_rows
    expected = {"ada": "none", "bob": "analyse", "eve": "none", "mute": "train", "other": "train", "strict": "analyse"}
    assert sorted(map(tuple, found)) == sorted(expected.items())


def test_the_result_under_the_newest_policy_counts(client: Client, inserter: Inserter) -> None:
    for version, consent in ((0, "train"), (2, "analyse"), (1, "train")):
        stamp = new_governance(source_event_id="s", job="govern@1", policy_version=version)
        put(inserter, "governed-steps", step("t", event_id=f"g{version}", governed=stamp, consent=consent))
    assert client.query("SELECT consent FROM step_consents").result_rows == [("analyse",)]
    assert client.query("SELECT event_id FROM step_contents FINAL").result_rows == [("g2",)]


def test_redelivered_findings_count_once(client: Client, inserter: Inserter) -> None:
    put(inserter, "governance-audit", *[SAMPLES["governance-audit"]] * 3)
    found = client.query("SELECT rule, records, finds FROM audit_counts ORDER BY rule").result_rows
    assert found == [("card", 1, 1), ("email", 1, 2)]


def test_only_the_rows_of_the_persons_are_deleted(client: Client, inserter: Inserter) -> None:
    for name, user in (("a", ADA.user), ("b", "bob")):
        put(inserter, "governed-steps", *(step(f"{name}{n}", user=user) for n in range(3)))
        put(inserter, "governed-feedback", feedback(event_id=name, user=user, trajectory_id=f"{name}0"))
        put(inserter, "labeled-trajectories", *(trajectory(f"{name}{n}", user=user) for n in range(3)))
    put(inserter, "governed-steps", step("else", user=ADA.user, tenant="else"))
    put(inserter, "consents", consent_change("train", user=ADA.user) | {"event_id": "c"})
    # The trajectory of another tenant on which she gave feedback, and that tenant's step with an id of hers, stay.
    put(inserter, "governed-feedback", feedback(event_id="foreign", user=ADA.user, trajectory_id="foreign"))
    put(inserter, "labeled-trajectories", trajectory("foreign", user=None, tenant="else"))
    put(inserter, "governed-steps", step("a1", 1, user=None, tenant="else"))
    put(inserter, "governed-steps", *(step("e", n, user=ZOE.user if n else None) for n in range(2)))
    trajectories = trajectories_of(client, [ADA, ZOE])
    assert trajectories == {
        ADA: PersonTrajectories({"a0", "a1", "a2", "foreign"}, {"a0", "a1", "a2"}),
        ZOE: PersonTrajectories({"e"}, {"e"}),
    }
    requests = [ErasureRequest("t", 0), ErasureRequest("t", 0)]
    targets = [Target(person, trajectories[person], one) for person, one in zip((ADA, ZOE), requests, strict=True)]
    # Of Ada: steps in two tables, feedback, consent and trajectories. Of Zoe: steps, of which one names nobody.
    assert count_rows(client, targets) == 3 + 2 + 1 + 3 + 2
    assert delete_rows(client, targets) == (2 * 3 + 2 + 1 + 3) + 2 * 2
    assert count_rows(client, targets) == 0
    assert delete_rows(client, targets) == 0
    assert [one.rows for one in requests] == [
        {"consents": 1, "step_contents": 3, "steps": 3, "feedback": 2, "trajectories": 3},
        {"consents": 0, "step_contents": 2, "steps": 2, "feedback": 0, "trajectories": 0},
    ]
    assert all(one.rows_planned == {} for one in requests)
    counts = [client.query(f"SELECT count() FROM {table}").result_rows[0][0] for table in ("steps", "trajectories")]
    assert counts == [5, 4]
    # The rows are gone from the active parts once these are rewritten, and no stored statement names them.
    remove_hidden(client)
    assert stored_rows(client) == 5
    statements = client.query("SELECT command FROM system.mutations WHERE database = 'governance'").result_rows
    assert any('"a1"' in command for (command,) in statements)
    assert not any("ada" in command or "zoe" in command for (command,) in statements)


def put_days(inserter: Inserter) -> None:
    """Insert a step of Ada and one of Bob on each of three days."""
    for day in range(3):
        put(
            inserter,
            "governed-steps",
            *(step(f"{user}{day}", user=user, occurred_at_us=T0_US + day * DAY_US) for user in ("ada", "bob")),
        )


def delete_ada(client: Client) -> None:
    person = Person("default", "ada")
    trajectories = trajectories_of(client, [person])
    request = ErasureRequest("t", 0)
    delete_rows(client, [Target(person, trajectories[person], request)])
    assert request.rows == {"consents": 0, "step_contents": 3, "steps": 3, "feedback": 0, "trajectories": 0}
    assert client.query("SELECT DISTINCT user FROM steps").result_rows == [("bob",)]


def mutations(client: Client) -> set[tuple[str, str, str]]:
    """Return table, id and the first word of each mutation of the tables of steps."""
    query = (
        "SELECT table, mutation_id, extract(command, '\\\\w+') FROM system.mutations "
        "WHERE database = 'governance' AND table IN ('steps', 'step_contents')"
    )
    return {(str(table), str(name), str(word)) for table, name, word in client.query(query).result_rows}


def stored_rows(client: Client) -> int:
    query = "SELECT sum(rows) FROM system.parts WHERE active AND database = 'governance' AND table = 'steps'"
    return int(client.query(query).result_rows[0][0])


def test_compact_parts_of_all_days_are_rewritten_once(client: Client, inserter: Inserter) -> None:
    put_days(inserter)
    before = mutations(client)
    delete_ada(client)
    assert stored_rows(client) == 3
    remove_hidden(client)
    assert sorted((table, word) for table, _, word in mutations(client) - before) == [
        ("step_contents", "DELETE"),
        ("steps", "DELETE"),
    ]


def test_wide_parts_of_all_days_are_rewritten_once(client: Client, inserter: Inserter) -> None:
    client.command("ALTER TABLE steps MODIFY SETTING min_bytes_for_wide_part = 0")
    try:
        put_days(inserter)
    finally:
        client.command("ALTER TABLE steps RESET SETTING min_bytes_for_wide_part")
    before = mutations(client)
    delete_ada(client)
    assert stored_rows(client) == 3
    remove_hidden(client)
    assert sorted((table, word) for table, _, word in mutations(client) - before) == [
        ("step_contents", "DELETE"),
        ("steps", "DELETE"),
    ]


def test_rows_that_an_earlier_release_hid_are_removed(client: Client, inserter: Inserter) -> None:
    put_days(inserter)
    client.command("DELETE FROM steps WHERE user = 'ada'", settings={"mutations_sync": 2})
    assert stored_rows(client) == 6
    remove_hidden(client)
    assert stored_rows(client) == 3


def test_keys_of_several_statements_are_deleted(
    client: Client, inserter: Inserter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delete_from_tables, "_KEYS_BYTES", 200)
    put_days(inserter)
    before = mutations(client)
    delete_ada(client)
    assert stored_rows(client) == 3
    assert sum(table == "steps" for table, _, _ in mutations(client) - before) == 2


def test_a_consent_deleted_from_the_topic_is_deleted_from_the_table(client: Client, inserter: Inserter) -> None:
    put(inserter, "consents", consent_change("train", user="ada"), consent_change("none", user="bob"))
    inserter.delete("consents", "key", "default/ada/*")
    assert client.query("SELECT key FROM consents").result_rows == [("default/bob/*",)]
