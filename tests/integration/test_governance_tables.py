"""Test governance in ClickHouse: later consents apply to stored steps, and deleted rows leave no data."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from fact_fixtures import put
from sample_records import SAMPLES, T0_US, feedback, step, trajectory
from waiting import wait_until

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection, hidden_rows, number_sets
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.erasure.delete_from_tables import (
    PersonTrajectories,
    Target,
    count_rows,
    delete_rows,
    trajectories_of,
)
from stepstream.jobs.erasure.findings import Person
from stepstream.jobs.erasure.request import ErasureRequest
from stepstream.topics.events import new_consent_change, new_governance

WEEK_US = 7 * 86_400_000_000
ADA, ZOE = Person("default", "ada'; --"), Person("default", "zoe\t\\")


@pytest.fixture(scope="module")
def settings(own_database: Callable[[str], Settings]) -> Settings:
    return own_database("governance")


def consent_change(level: Any, at: int = 0, **subject: Any) -> Any:
    """Return a consent change of a tenant, a person or an agent."""
    fields = {"tenant": "default"} | subject
    return new_consent_change(event_id=f"{subject}{at}", occurred_at_us=T0_US + at, consent=level, **fields)


def test_a_later_consent_applies_to_stored_steps(facts: Client, inserter: Inserter) -> None:
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
    found = facts.query("SELECT trajectory_id, consent FROM step_consents").result_rows
    expected = {"ada": "none", "bob": "analyse", "eve": "none", "mute": "train", "other": "train", "strict": "analyse"}
    assert sorted(map(tuple, found)) == sorted(expected.items())


def test_the_result_under_the_newest_policy_counts(facts: Client, inserter: Inserter) -> None:
    for version, consent in ((0, "train"), (2, "analyse"), (1, "train")):
        stamp = new_governance(source_event_id="s", job="govern@1", policy_version=version)
        put(inserter, "governed-steps", step("t", event_id=f"g{version}", governed=stamp, consent=consent))
    assert facts.query("SELECT consent FROM step_consents").result_rows == [("analyse",)]
    assert facts.query("SELECT event_id FROM step_contents FINAL").result_rows == [("g2",)]


def test_redelivered_findings_count_once(facts: Client, inserter: Inserter) -> None:
    put(inserter, "governance-audit", *[SAMPLES["governance-audit"]] * 3)
    found = facts.query("SELECT rule, records, finds FROM audit_counts ORDER BY rule").result_rows
    assert found == [("card", 1, 1), ("email", 1, 2)]


def test_only_the_rows_of_the_persons_are_deleted(facts: Client, inserter: Inserter) -> None:
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
    trajectories = trajectories_of(facts, [ADA, ZOE])
    assert trajectories == {
        ADA: PersonTrajectories({"a0", "a1", "a2", "foreign"}, {"a0", "a1", "a2"}),
        ZOE: PersonTrajectories({"e"}, {"e"}),
    }
    requests = [ErasureRequest("t", 0), ErasureRequest("t", 0)]
    targets = [Target(person, trajectories[person], one) for person, one in zip((ADA, ZOE), requests, strict=True)]
    # Of Ada: steps in two tables, feedback, consent and trajectories. Of Zoe: steps, of which one names nobody.
    assert count_rows(facts, targets) == 3 + 2 + 1 + 3 + 2
    assert delete_rows(facts, targets) == (2 * 3 + 2 + 1 + 3) + 2 * 2
    assert count_rows(facts, targets) == 0
    assert delete_rows(facts, targets) == 0
    assert [one.rows for one in requests] == [
        {"consents": 1, "step_contents": 3, "steps": 3, "feedback": 2, "trajectories": 3},
        {"consents": 0, "step_contents": 2, "steps": 2, "feedback": 0, "trajectories": 0},
    ]
    assert all(one.rows_planned == {} for one in requests)
    counts = [facts.query(f"SELECT count() FROM {table}").result_rows[0][0] for table in ("steps", "trajectories")]
    assert counts == [5, 4]
    # The rows are gone from the active parts once these are rewritten, and no stored statement names them.
    assert stored_rows(facts) == 5 + 5
    rewrite(facts)
    assert stored_rows(facts) == 5
    statements = facts.query("SELECT command FROM system.mutations WHERE database = 'governance'").result_rows
    assert len(statements) > 0
    assert not any("ada" in command or "zoe" in command or "'a1'" in command for (command,) in statements)
    sets = "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'Set'"
    assert facts.query(sets).result_rows == []


def put_weeks(inserter: Inserter, prefix: str = "") -> None:
    """Insert a step of Ada and one of Bob in each of three weeks."""
    for week in range(3):
        put(
            inserter,
            "governed-steps",
            *(
                step(f"{prefix}{user}{week}", user=user, occurred_at_us=T0_US + week * WEEK_US)
                for user in ("ada", "bob")
            ),
        )


def delete_ada(facts: Client) -> None:
    person = Person("default", "ada")
    trajectories = trajectories_of(facts, [person])
    request = ErasureRequest("t", 0)
    delete_rows(facts, [Target(person, trajectories[person], request)])
    assert request.rows == {"consents": 0, "step_contents": 3, "steps": 3, "feedback": 0, "trajectories": 0}
    assert facts.query("SELECT DISTINCT user FROM steps").result_rows == [("bob",)]


def rewrite(facts: Client) -> dict[str, int]:
    return hidden_rows.rewrite(facts, lambda _: None)


def mutations(facts: Client) -> set[tuple[str, str, str]]:
    """Return table, id and the first word of each mutation of the tables of steps."""
    query = (
        "SELECT table, mutation_id, extract(command, '\\\\w+') FROM system.mutations "
        "WHERE database = 'governance' AND table IN ('steps', 'step_contents')"
    )
    return {(str(table), str(name), str(word)) for table, name, word in facts.query(query).result_rows}


def stored_rows(facts: Client) -> int:
    query = "SELECT sum(rows) FROM system.parts WHERE active AND database = 'governance' AND table = 'steps'"
    return int(facts.query(query).result_rows[0][0])


@pytest.mark.parametrize("wide", [False, True])
def test_rows_of_all_weeks_are_hidden_and_their_parts_rewritten_once(
    facts: Client, inserter: Inserter, wide: bool
) -> None:
    facts.command(f"ALTER TABLE steps MODIFY SETTING min_bytes_for_wide_part = {0 if wide else 10 << 20}")
    try:
        put_weeks(inserter)
    finally:
        facts.command("ALTER TABLE steps RESET SETTING min_bytes_for_wide_part")
    before = mutations(facts)
    delete_ada(facts)
    assert stored_rows(facts) == 6
    assert rewrite(facts)["steps"] == 3
    assert stored_rows(facts) == 3
    assert sorted((table, word) for table, _, word in mutations(facts) - before) == [
        ("step_contents", "APPLY"),
        ("step_contents", "UPDATE"),
        ("steps", "APPLY"),
        ("steps", "UPDATE"),
    ]
    assert rewrite(facts) == {}


def test_a_rewriting_begins_once_for_all_that_was_hidden_before(facts: Client, inserter: Inserter) -> None:
    """`begin_rewriting` does not wait for the end; two processes may call it at once."""
    since_s = int(time.time()) - 3600
    assert hidden_rows.begin_rewriting(facts, since_s) == {}
    put_weeks(inserter)
    delete_ada(facts)
    begun = inserter.begin_rewriting(since_s)
    assert begun is not None
    assert begun["steps"] == 3
    wait_until(lambda: stored_rows(facts) == 3 and not hidden_rows.hidden_parts(facts))
    put_weeks(inserter, "later-")
    delete_ada(facts)
    assert hidden_rows.begin_rewriting(facts, since_s) == {}, "the next one is due at the next interval"
    assert stored_rows(facts) == 3 + 6
    # Two at once: each has seen none that has begun.
    later_s = int(time.time()) + 3600
    for _ in range(2):
        hidden_rows.begin_rewriting(facts, later_s)
    wait_until(lambda: not hidden_rows.hidden_parts(facts))
    assert facts.query("SELECT count() FROM steps").result_rows[0][0] == 6


def test_a_rewriting_has_an_age_until_it_ends(facts: Client, inserter: Inserter) -> None:
    waiting = "SELECT count() FROM system.mutations WHERE table = 'steps' AND NOT is_done AND create_time < now()"
    later_s = int(time.time()) + 3600
    put_weeks(inserter)
    delete_ada(facts)
    facts.command("SYSTEM STOP MERGES steps")
    try:
        facts.command("ALTER TABLE steps DELETE WHERE user = 'nobody'", settings={"mutations_sync": 0})
        wait_until(lambda: facts.query(waiting).result_rows == [(1,)])
        assert inserter.rewriting_age_s() == 0, "another mutation"
        assert hidden_rows.begin_rewriting(facts, later_s)["steps"] == 3
        wait_until(lambda: (inserter.rewriting_age_s() or 0) > 0)
    finally:
        facts.command("SYSTEM START MERGES steps")
    wait_until(lambda: not hidden_rows.hidden_parts(facts) and inserter.rewriting_age_s() == 0)


def test_a_row_with_the_source_key_of_an_erased_one_stays(facts: Client, inserter: Inserter) -> None:
    """Tenants, and trajectories of one tenant, may use the same event id."""
    put(inserter, "governed-steps", step("mine", user="ada", event_id="e"), step("other", user="ada"))
    put(inserter, "governed-steps", step("bobs", user="bob", event_id="e"), step("theirs", event_id="e", tenant="else"))
    put(inserter, "governed-feedback", feedback(event_id="f", user="ada", trajectory_id="mine"))
    put(inserter, "governed-feedback", feedback(event_id="f", user="bob", trajectory_id="bobs"))
    put(inserter, "labeled-trajectories", trajectory("mine", user="ada"), trajectory("mine", user="eve", tenant="else"))
    person, request = Person("default", "ada"), ErasureRequest("t", 0)
    trajectories = trajectories_of(facts, [person])
    assert delete_rows(facts, [Target(person, trajectories[person], request)]) == 2 + 2 + 1 + 1
    assert request.rows == {"consents": 0, "step_contents": 2, "steps": 2, "feedback": 1, "trajectories": 1}
    for table, left in (("steps", 2), ("step_contents", 2), ("feedback", 1), ("trajectories", 1)):
        assert facts.query(f"SELECT count() FROM {table}").result_rows == [(left,)], table


HIDDEN = "SELECT user FROM steps SETTINGS apply_deleted_mask = 0"


@pytest.mark.parametrize(
    "query",
    [
        HIDDEN,
        f"SELECT '' UNION ALL {HIDDEN}",
        "SELECT user FROM steps SETTINGS `apply_deleted\\x5fmask` = 0",
        "SELECT * FROM mergeTreeIndex(currentDatabase(), 'steps')",
        "SELECT * FROM mergeTreeTextIndex(currentDatabase(), 'step_contents', 'words')",
    ],
)
@pytest.mark.parametrize("reads_only", [True, False])
def test_what_could_show_hidden_rows_is_refused(
    settings: Settings, facts: Client, query: str, reads_only: bool
) -> None:
    with (
        connection.connect(settings, database="governance", reads_only=reads_only) as asking,
        pytest.raises(ClickHouseError, match=r"apply_deleted_mask|mergeTree"),
    ):
        asking.query(query)


@pytest.mark.parametrize("reads_only", [True, False])
def test_no_setting_of_a_request_shows_hidden_rows(settings: Settings, facts: Client, reads_only: bool) -> None:
    with (
        connection.connect(settings, database="governance", reads_only=reads_only) as asking,
        pytest.raises(ClickHouseError, match="apply_deleted_mask"),
    ):
        asking.query("SELECT user FROM steps", settings={"apply_deleted_mask": 0})


def test_hidden_rows_are_in_no_answer(settings: Settings, facts: Client, inserter: Inserter) -> None:
    put_weeks(inserter)
    delete_ada(facts)
    with connection.connect(settings, database="governance", reads_only=True) as reader:
        for query in (
            "SELECT user FROM steps WHERE _row_exists = 0",
            "SELECT user FROM steps PREWHERE NOT _row_exists",
            "SELECT user FROM steps FINAL WHERE user = 'ada'",
            "SELECT user FROM steps WHERE trajectory_id = 'ada0'",
            "SELECT user FROM merge(currentDatabase(), '^steps$') WHERE user = 'ada'",
            "SELECT messages FROM step_contents WHERE startsWith(trajectory_id, 'ada')",
            # The engine ignores the setting in a subquery.
            f"SELECT user FROM ({HIDDEN}) WHERE user = 'ada'",
            f"WITH s AS ({HIDDEN}) SELECT user FROM s WHERE user = 'ada'",
            f"SELECT 1 WHERE 'ada' IN ({HIDDEN})",
            f"SELECT user FROM view({HIDDEN}) WHERE user = 'ada'",
        ):
            assert reader.query(query).result_rows == [], query
        for query in ("SELECT count() FROM steps", "SELECT count() FROM steps FINAL", "SELECT sum(1) FROM steps"):
            assert reader.query(query).result_rows == [(3,)], query
    rewrite(facts)


def test_a_row_that_arrives_after_the_hiding_is_hidden_too(facts: Client, inserter: Inserter) -> None:
    person, request = Person("default", "ada"), ErasureRequest("t", 0)
    put(inserter, "governed-steps", step("a", user="ada"))
    targets = [Target(person, trajectories_of(facts, [person])[person], request)]
    assert delete_rows(facts, targets) == 2
    put(inserter, "governed-steps", step("a", 1, user="ada"), step("a", 2, user="bob"))
    assert count_rows(facts, targets) == 1
    assert delete_rows(facts, targets) == 2
    assert (count_rows(facts, targets), request.rows["steps"]) == (0, 2)
    assert facts.query("SELECT user FROM steps").result_rows == [("bob",)]


class Killed(Exception):
    """Simulated death of the command."""


@pytest.mark.parametrize("is_done", [False, True], ids=["before the statement", "after it"])
def test_a_row_counts_once_if_a_statement_is_interrupted(
    facts: Client, inserter: Inserter, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    person, command = Person("default", "ada"), facts.command
    for stopped_at in range(5):  # four tables of facts, and their times
        put(inserter, "governed-steps", step(f"a{stopped_at}", user="ada"), step(f"a{stopped_at}", 1, user="ada"))
        put(inserter, "governed-feedback", feedback(event_id=f"{stopped_at}", user="ada", trajectory_id="a"))
        put(inserter, "labeled-trajectories", trajectory(f"a{stopped_at}", user="ada"))
        request, left = ErasureRequest("t", 0), [stopped_at]
        targets = [Target(person, trajectories_of(facts, [person])[person], request)]

        def killing(text: str, left: list[int] = left, **arguments: Any) -> Any:
            is_deletion = text.startswith("DELETE FROM")
            if is_done or not is_deletion or left[0] > 0:
                command(text, **arguments)
            left[0] -= is_deletion
            if left[0] < 0:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(facts, "command", killing)
            with pytest.raises(Killed):
                delete_rows(facts, targets)
        delete_rows(facts, targets)
        expected = {"steps": 2, "step_contents": 2, "feedback": 1, "trajectories": 1, "consents": 0}
        assert (request.rows, count_rows(facts, targets)) == (expected, 0), stopped_at


@pytest.mark.parametrize(("replicated", "statements"), [(False, 1), (True, 2)])
def test_a_statement_takes_all_numbers_and_those_of_replicas_some_each(
    facts: Client, inserter: Inserter, monkeypatch: pytest.MonkeyPatch, replicated: bool, statements: int
) -> None:
    monkeypatch.setattr(number_sets, "LITERAL_NUMBERS", 2)
    monkeypatch.setattr(number_sets, "_REPLICATED", f"SELECT {int(replicated)}")
    put_weeks(inserter)
    before = mutations(facts)
    delete_ada(facts)
    assert sum(table == "steps" for table, _, _ in mutations(facts) - before) == statements
    rewrite(facts)
    assert stored_rows(facts) == 3


def test_a_statement_names_the_tenants_if_others_have_steps(facts: Client, inserter: Inserter) -> None:
    query = """
    SELECT count() FROM system.mutations
    WHERE database = 'governance' AND table = 'steps' AND position(command, $$tenant IN ('default')$$) > 0
    """
    put_weeks(inserter)
    facts.command("INSERT INTO step_hours (tenant, hour, version) SELECT 'else', now(), now64(6)")
    [(before,)] = facts.query(query).result_rows
    delete_ada(facts)
    assert facts.query(query).result_rows == [(before + 1,)]


def test_a_consent_deleted_from_the_topic_is_deleted_from_the_table(facts: Client, inserter: Inserter) -> None:
    put(inserter, "consents", consent_change("train", user="ada"), consent_change("none", user="bob"))
    inserter.delete("consents", "key", "default/ada/*")
    assert facts.query("SELECT key FROM consents").result_rows == [("default/bob/*",)]
