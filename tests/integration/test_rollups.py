"""Test the rollups on the embedded store: they equal the facts after any delivery of the same events."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as bounds
from hypothesis import strategies as st
from sample_records import SECOND_US, T0_US, checkpoint, feedback, step, trajectory
from waiting import wait_until

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rollup_refresh import EVERY_S, ROLLUPS, refresh, refresh_lag_s
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.jobs.erasure.delete_from_tables import delete_rows, own_trajectories_of, remove_hidden, trajectories_of
from stepstream.jobs.erasure.findings import Person
from stepstream.jobs.erasure.request import ErasureRequest
from stepstream.topics.events import new_governance, new_reward_component, new_tool_call

ADA = Person("default", "ada")
HOUR_US = 3600 * SECOND_US
FACTS = ("steps", "step_contents", "trajectories", "feedback", "checkpoints", "trajectory_times")


@pytest.fixture(scope="module")
def client(store_settings: Settings) -> Iterator[Client]:
    own = store_settings.clickhouse.model_copy(update={"database": "rollups"})
    migrate(store_settings.model_copy(update={"clickhouse": own}))
    with connection.connect(store_settings, database="rollups") as client:
        yield client


def governed(record: Any, version: int) -> Any:
    """Return the result of a record under a version of the policy."""
    source = record["event_id"]
    stamp = new_governance(source_event_id=source, job="govern@1", policy_version=version, trainable=version > 0)
    return record | {"event_id": f"{source}/{version}", "governed": stamp}


def label(name: str, revision: int, opened_us: int, user: str | None) -> Any:
    """Return a label; a later revision has another agent, another reward, fewer components and a later end."""
    record = trajectory(name, revision=revision, opened_at_us=opened_us, user=user, agent=f"a{revision % 2}")
    record |= {"reward": revision / 4, "success": [True, False, None][revision % 3], "cost_usd": revision / 8}
    record["ended_at_us"] = opened_us + revision * HOUR_US
    call = new_tool_call(call_id="1", name="get", arguments="{}", error="timeout" if revision == 1 else None)
    components = [new_reward_component(name=f"c{n}", value=n / 2, weight=0.5, source="s") for n in range(3 - revision)]
    record["steps"][0] |= {"tool_calls": [call | {"duration_ms": 8.0}] * revision, "components": components}
    return record


def events_of(name: str, at_us: int, user: str | None) -> list[tuple[str, Any]]:
    """Return the events of one trajectory: steps and feedback under three policies, and three revisions."""
    at = {"occurred_at_us": at_us}
    steps = [step(name, n, at_us + n * HOUR_US, user=user, duration_ms=4.0, cost_usd=0.5) for n in range(2)]
    signal = feedback(f"{name}-f", trajectory_id=name, user=user, **at)
    return [
        *(("governed-steps", governed(one, version)) for one in steps for version in (0, 2, 1)),
        *(("governed-feedback", governed(signal, version)) for version in (0, 1)),
        *(("labeled-trajectories", label(name, revision, at_us, user)) for revision in (1, 2, 3)),
    ]


HERS = events_of("hers", T0_US, ADA.user)
OTHERS = [
    *events_of("one", T0_US, None),
    *events_of("two", T0_US + HOUR_US, "bob"),
    ("checkpoints", checkpoint(3, T0_US - HOUR_US)),
    ("checkpoints", checkpoint(5, T0_US + 2 * HOUR_US)),
]


def insert(client: Client, events: Sequence[tuple[str, Any]]) -> None:
    batches: dict[str, list[Any]] = {}
    for topic, record in events:
        for table, row in rows(topic, record):
            batches.setdefault(table, []).append(row)
    for table, batch in batches.items():
        client.insert(table, batch, column_names=TABLES[table].columns)


def clear(client: Client) -> None:
    for table in (*FACTS, *ROLLUPS, "dirty_hours"):
        client.command(f"TRUNCATE TABLE {table}")


def contents(client: Client) -> dict[str, list[str]]:
    """Return the rows of facts and rollups, without versions of rollups and without cohorts whose facts are gone."""
    found = {}
    for table in (*FACTS, *ROLLUPS):
        count = {"step_hours": "steps", "tool_hours": "calls", "tool_days": "calls"}.get(table, "trajectories")
        what = f"toString(tuple(* EXCEPT version)) FROM {table} FINAL WHERE {count} > 0"
        if table in FACTS:
            what = f"toString(tuple(*)) FROM {table} FINAL"
        found[table] = sorted(row for (row,) in client.query(f"SELECT {what}").result_rows)
    return found


def test_a_rollup_is_refreshed_within_seconds(client: Client) -> None:
    insert(client, [*HERS, *OTHERS])
    query = "SELECT sum(trajectories), sum(outcomes), sum(successes) FROM trajectory_hours FINAL"
    wait_until(lambda: client.query(query).result_rows == [(3, 3, 3)])
    failed = "SELECT view, exception FROM system.view_refreshes WHERE database = 'rollups' AND exception != ''"
    assert client.query(failed).result_rows == []
    wait_until(lambda: refresh_lag_s(client) <= 2 * EVERY_S)  # every rollup, since the server's start at the latest


@pytest.fixture(scope="module")
def expected(client: Client) -> dict[bool, dict[str, list[str]]]:
    """The tables after each event once, in order; with or without the person."""
    for rollup in ROLLUPS:  # the test refreshes by itself
        client.command(f"DROP VIEW IF EXISTS {rollup}_refresh SYNC")
    found = {}
    for with_her in (True, False):
        clear(client)
        insert(client, [*(HERS if with_her else []), *OTHERS])
        refresh(client)
        found[with_her] = contents(client)
    return found


def test_the_sums_are_those_of_the_newest_revisions(expected: dict[bool, dict[str, list[str]]]) -> None:
    assert len(expected[True]["trajectory_hours"]) == 2
    assert len(expected[True]["trajectories"]) == 3
    assert len(expected[True]["steps"]) == 6
    assert expected[True] != expected[False]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[list[tuple[str, Any]]], list[int], bool]:
    """Draw batches with every event at least once, the numbers of batches before which to refresh, and an erasure."""
    events = [*HERS, *OTHERS]
    again = draw(st.lists(st.sampled_from(events), max_size=8))
    order = draw(st.permutations([*events, *again]))
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1), max_size=4)))
    batches = [order[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    return batches, draw(st.lists(st.integers(0, len(batches) - 1), max_size=2)), draw(st.booleans())


@bounds(
    max_examples=6,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(deliveries())
def test_any_delivery_of_the_same_events_leaves_the_same_rows(
    client: Client,
    expected: dict[bool, dict[str, list[str]]],
    delivery: tuple[list[list[tuple[str, Any]]], list[int], bool],
) -> None:
    batches, refreshes, erases = delivery
    clear(client)
    for number, batch in enumerate(batches):
        if number in refreshes:
            refresh(client)
        insert(client, batch)
    if erases:
        delete_rows(client, ADA, trajectories_of(client, ADA), own_trajectories_of(client, ADA), ErasureRequest("t", 0))
        remove_hidden(client)
        insert(client, OTHERS)  # a replay; the records of an erased person have no rows
    refresh(client)
    found, wanted = contents(client), expected[not erases]
    for table, rows_found in found.items():
        assert rows_found == wanted[table], table
