"""Test that an erasure finds the rows of persons by their times, and leaves those of others."""

from collections.abc import Callable
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from fact_fixtures import put
from sample_records import T0_US, step, trajectory

from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.erasure import row_times
from stepstream.jobs.erasure.delete_from_tables import (
    PersonTrajectories,
    Target,
    count_rows,
    delete_rows,
    trajectories_of,
)
from stepstream.jobs.erasure.erase import CannotErase
from stepstream.jobs.erasure.erase import erase as erase_persons
from stepstream.jobs.erasure.findings import Person
from stepstream.jobs.erasure.request import ErasureRequest

DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def settings(own_database: Callable[[str], Settings]) -> Settings:
    return own_database("erased_rows")


def test_a_shared_trajectory_keeps_the_times_of_the_steps_of_others(facts: Client, inserter: Inserter) -> None:
    seconds = {"ada": (0, 2_000), "bob": (600, 700)}
    for user, times in seconds.items():
        for number, second in enumerate(times):
            one = step("shared", number, user=user, event_id=f"{user}{number}", at_us=T0_US + second * 1_000_000)
            put(inserter, "governed-steps", one)
    put(inserter, "governed-steps", step("hers", user="ada"), step("shared", tenant="else", event_id="e"))
    person = Person("default", "ada")
    targets = [Target(person, trajectories_of(facts, [person])[person], ErasureRequest("t", 0))]
    delete_rows(facts, targets)
    found = facts.query(
        "SELECT tenant, toUnixTimestamp(min(first)), toUnixTimestamp(max(last)) FROM trajectory_times "
        "WHERE trajectory_key IN (sipHash64('shared'), sipHash64('hers')) "
        "GROUP BY trajectory_key, tenant ORDER BY tenant"
    ).result_rows
    start = T0_US // 1_000_000
    assert found == [("default", start + 600, start + 700), ("else", start, start)]


def erase(facts: Client, *persons: Person) -> list[dict[str, int]]:
    """Delete the rows of persons in one pass; return the number of rows of each by table."""
    trajectories = trajectories_of(facts, persons)
    requests = [ErasureRequest("t", 0) for _ in persons]
    pairs = zip(persons, requests, strict=True)
    targets = [Target(person, trajectories[person], request) for person, request in pairs]
    delete_rows(facts, targets)
    assert count_rows(facts, targets) == 0
    return [{table: rows for table, rows in request.rows.items() if rows} for request in requests]


def test_a_person_is_found_by_a_step_without_a_label(facts: Client, inserter: Inserter) -> None:
    put(inserter, "governed-steps", step("open", user="ada"), step("bobs", user="bob"), step("bobs", 1, user="ada"))
    put(inserter, "labeled-trajectories", trajectory("bobs", user="bob"), trajectory("labelled", user="ada"))
    hers = trajectories_of(facts, [Person("default", "ada")])[Person("default", "ada")]
    assert hers == PersonTrajectories({"open", "bobs", "labelled"}, {"open", "bobs", "labelled"})
    assert erase(facts, Person("default", "ada")) == [{"step_contents": 2, "steps": 2, "trajectories": 2}]
    assert facts.query("SELECT user FROM steps").result_rows == [("bob",)]


def test_rows_long_after_and_before_the_others_are_found(facts: Client, inserter: Inserter) -> None:
    """Steps of one trajectory on several days, one of them without a name, and a label that opened before."""
    for index, day in enumerate((3, 40, 1)):
        one = step("long", index, user=None if index == 2 else "ada", event_id=f"{day}", at_us=T0_US + day * DAY_US)
        put(inserter, "governed-steps", one)
    put(inserter, "labeled-trajectories", trajectory("long", user="ada", opened_at_us=T0_US))
    assert erase(facts, Person("default", "ada")) == [{"step_contents": 3, "steps": 3, "trajectories": 1}]
    assert facts.query("SELECT count() FROM trajectory_times").result_rows == [(0,)]


def test_too_many_ranges_are_read_as_one(facts: Client, inserter: Inserter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_times, "MOST_BUCKETS", 1)
    for day in range(3):
        put(inserter, "governed-steps", step(f"t{day}", user="ada", occurred_at_us=T0_US + day * DAY_US))
    put(inserter, "governed-steps", step("other", user="bob"))
    assert erase(facts, Person("default", "ada")) == [{"step_contents": 3, "steps": 3}]
    assert facts.query("SELECT user FROM steps").result_rows == [("bob",)]


def test_tenants_with_a_user_and_a_trajectory_of_the_same_names_stay_apart(facts: Client, inserter: Inserter) -> None:
    names = [(tenant, user) for tenant in ("default", "else") for user in ("ada", "bob")]
    for number, (tenant, user) in enumerate(names):
        one = step("t", number % 2, user=user, tenant=tenant, event_id=f"{number % 2}", at_us=T0_US + number * 1000)
        put(inserter, "governed-steps", one)
        put(inserter, "labeled-trajectories", trajectory(f"of {user}", user=user, tenant=tenant))
    assert (
        erase(facts, Person("default", "ada"), Person("else", "bob"))
        == [{"step_contents": 1, "steps": 1, "trajectories": 1}] * 2
    )
    left = sorted([("default", "bob"), ("else", "ada")])
    for table in ("steps", "trajectories"):
        assert sorted(map(tuple, facts.query(f"SELECT tenant, user FROM {table}").result_rows)) == left, table
    of_users = "SELECT DISTINCT tenant, user_key = sipHash64('ada') FROM trajectory_times ORDER BY tenant"
    assert facts.query(of_users).result_rows == [("default", 0), ("else", 1)]


def test_persons_with_the_names_of_their_tenants_stay_apart(facts: Client, inserter: Inserter) -> None:
    for tenant in ("default", "else"):
        put(inserter, "governed-steps", step("t", user=tenant, tenant=tenant))
    for tenant in ("default", "else"):
        assert erase(facts, Person(tenant, tenant)) == [{"step_contents": 1, "steps": 1}], tenant


def test_labels_that_open_and_end_with_those_of_others_stay(facts: Client, inserter: Inserter) -> None:
    """Of three labels with the same times, one is deleted; another has the opening of one and the end of another."""
    put(inserter, "labeled-trajectories", trajectory("a", user="ada"), trajectory("b", user="bob"))
    put(inserter, "labeled-trajectories", trajectory("c", user="ada", opened_at_us=T0_US - DAY_US))
    put(inserter, "labeled-trajectories", trajectory("d", user="bob", opened_at_us=T0_US - DAY_US))
    assert erase(facts, Person("default", "ada")) == [{"trajectories": 2}]
    left = "SELECT trajectory_id FROM trajectories ORDER BY trajectory_id"
    assert facts.query(left).result_rows == [("b",), ("d",)]


@pytest.mark.parametrize("later_us", [0, DAY_US])
@pytest.mark.parametrize("before", ["steps", "trajectory_times"])
@pytest.mark.parametrize("table", ["steps", "trajectories"])
def test_a_row_that_comes_between_the_statements_is_found_by_the_next_pass(
    facts: Client, inserter: Inserter, monkeypatch: pytest.MonkeyPatch, table: str, before: str, later_us: int
) -> None:
    """It comes before a statement; its time is one of those of other rows, or is not."""
    person, command = Person("default", "ada"), facts.command
    put(inserter, "governed-steps", step("t", user="ada"))
    put(inserter, "labeled-trajectories", trajectory("t", user="ada"))
    target = Target(person, trajectories_of(facts, [person])[person], ErasureRequest("t", 0))

    def inserting(text: str, **arguments: Any) -> Any:
        if text.startswith(f"DELETE FROM {before} "):
            if table == "steps":
                put(inserter, "governed-steps", step("t", 9, user="ada", at_us=T0_US + later_us))
            else:
                put(inserter, "labeled-trajectories", trajectory("u", user="ada", opened_at_us=T0_US + later_us))
        return command(text, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(facts, "command", inserting)
        delete_rows(facts, [target])
    # The search for labels follows that for steps; it finds one within the times of the others.
    is_found = (table, before, later_us) == ("trajectories", "steps", 0)
    assert count_rows(facts, [target]) == (not is_found)
    delete_rows(facts, [target])
    assert count_rows(facts, [target]) == 0
    for left in ("steps", "step_contents", "trajectories", "trajectory_times"):
        assert facts.query(f"SELECT count() FROM {left}").result_rows == [(0,)], left


def test_no_erasure_begins_before_the_migrations_have_ended(own_database: Callable[[str], Settings]) -> None:
    settings = own_database("half_migrated")
    migrate(settings)
    with connect(settings, database="half_migrated") as client:
        client.command("DELETE FROM schema_migrations WHERE name = '0052_move_to_weeks'")
        with pytest.raises(CannotErase, match=r"0052_move_to_weeks .* run `stepstream store migrate`"):
            erase_persons(settings, client, [], requested_by="t", wait_s=0, say=print)
