"""Test rollups and views on the embedded store: any delivery of the same events leaves the same rows."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from clickhouse_connect.driver.client import Client
from hypothesis import HealthCheck, Phase, example, given
from hypothesis import settings as bounds
from hypothesis import strategies as st
from insert_facts import insert
from measure_runs import measure_run
from sample_records import (
    SAMPLES,
    SECOND_US,
    T0_US,
    checkpoint,
    feedback,
    learner_update,
    step,
    training_decision,
    trajectory,
    worker_status,
)
from stack_fixtures import with_settings
from stored_cohorts import store_cohorts, stored_cohorts
from waiting import wait_until

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.materialized_views import materialized_views
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rollup_refresh import REFRESHED, ROLLUPS, refresh, refresh_lag_s, statement
from stepstream.jobs.clickhouse.views import views
from stepstream.jobs.erasure.delete_from_tables import Target, delete_rows, trajectories_of
from stepstream.jobs.erasure.findings import Person
from stepstream.jobs.erasure.request import ErasureRequest
from stepstream.topics.events import new_governance, new_labeled_step, new_reward_component, new_tool_call, new_tool_use

ADA = Person("default", "ada")
HOUR_US = 3600 * SECOND_US
REFRESH_S = 2
FACTS = (
    *("steps", "step_contents", "trajectories", "feedback", "checkpoints", "trajectory_times"),
    *("learner_updates", "learner_update_lags", "worker_status", "rollouts", "alarms", "closures", "curation"),
    *("governance_audit", "training_decisions", "dead_letters", "trajectory_stats", "component_stats"),
)
COUNTS = {"step_hours": "steps", "first_token_hours": "steps", "tool_hours": "calls", "tool_days": "calls"}
"""Column that is zero in rows of cohorts whose facts are gone, of rollups that count no trajectories."""
SIGNALS = (
    *(("confidence", 0.5, ""), ("proposed", 4, ""), ("kept", 3, ""), ("reverted", 1, ""), ("violation", 0.5, "")),
    *(("policy_critical_actions", 4, ""), ("attack_resisted", 1, "")),
    # Two of one time: which counts must not depend on the order of arrival.
    *(("assigned", 1, "memory"), ("assigned", 0, "memory"), ("perturbation", None, "fault")),
    ("perturbation", None, "prompt"),
)
"""Name, value and category of the feedback that views read."""


@pytest.fixture(scope="module")
def client(own_database: Callable[[str], Settings]) -> Iterator[Client]:
    settings = with_settings(own_database("rollups"), clickhouse={"refresh_s": REFRESH_S})
    migrate(settings)
    with connection.connect(settings, database="rollups") as client:
        yield client


def governed(record: Any, version: int) -> Any:
    """Return the result of a record under a version of the policy."""
    source = record["event_id"]
    stamp = new_governance(source_event_id=source, job="govern@1", policy_version=version, trainable=version > 0)
    return record | {"event_id": f"{source}/{version}", "governed": stamp}


def label(name: str, revision: int, opened_us: int, user: str | None) -> Any:
    """Return a label; a later revision has another agent, another reward, fewer components and a later end.

    The newest revision of `two` is a failure.
    """
    record = trajectory(name, revision=revision, opened_at_us=opened_us, user=user, agent=f"a{revision % 2}")
    record |= {"reward": revision / 4, "success": [True, False, None][(revision + (name == "two")) % 3]}
    record |= {
        "cost_usd": revision / 8,
        "harness_version": "prompt=1;tools=2",
        "task_id": "family/task",
        "group_id": "g",
    }
    record["ended_at_us"] = opened_us + revision * HOUR_US
    call = new_tool_call(call_id="1", name="get", arguments="{}", error=None if revision == 2 else "timeout")
    components = [new_reward_component(name=f"c{n}", value=n / 2, weight=0.5, source="s") for n in range(4 - revision)]
    record["steps"][0] |= {"tool_calls": [call | {"duration_ms": 8.0}] * revision, "components": components}
    return record


def events_of(name: str, at_us: int, user: str | None) -> list[tuple[str, Any]]:
    """Return the events of one trajectory: steps and feedback under three policies, and three revisions."""
    at = {"occurred_at_us": at_us}
    measured: Any = {"duration_ms": 4.0, "first_token_ms": 2.0, "cost_usd": 0.5}
    steps = [step(name, n, at_us + n * HOUR_US, user=user, **measured) for n in range(2)]
    signals = [
        feedback(f"{name}-{n}", trajectory_id=name, user=user, name=kind, value=value, category=category, **at)
        for n, (kind, value, category) in enumerate(SIGNALS)
        if (name == "two") is (kind == "perturbation") or kind != "perturbation"
    ]
    signals[3] |= {"occurred_at_us": at_us + 30 * HOUR_US}
    taken_back = feedback(f"{name}-back", trajectory_id=name, user=user, retracts=f"{name}-4", **at)
    return [
        *(("governed-steps", governed(one, version)) for one in steps for version in (0, 2, 1)),
        *(("governed-feedback", governed(one, version)) for one in (*signals, taken_back) for version in (0, 1)),
        *(("labeled-trajectories", label(name, revision, at_us, user)) for revision in (1, 2, 3)),
    ]


SINCE, UNTIL = T0_US // SECOND_US - 86400, T0_US // SECOND_US + 86400
RANGE = f"since = toDateTime({SINCE}), until = toDateTime({UNTIL})"
HERS = events_of("hers", T0_US, ADA.user)
OTHERS = [
    *events_of("one", T0_US, None),
    *events_of("two", T0_US + HOUR_US, "bob"),
    ("checkpoints", checkpoint(3, T0_US - HOUR_US)),
    ("checkpoints", checkpoint(5, T0_US + 2 * HOUR_US, parent_version=3)),
    *(("learner-updates", learner_update(event_id=f"u{n}", update=n, figures={"tokens": 4.0})) for n in (7, 8)),
    *(("worker-status", worker_status(f"w{n}", T0_US + n * HOUR_US, version=n)) for n in (3, 5)),
    *((topic, SAMPLES[topic]) for topic in ("rollouts", "alarms", "closures", "curation", "governance-audit")),
    *((topic, SAMPLES[topic]) for topic in ("dead-letters", "trajectory-stats")),
    *(("training-decisions", training_decision(occurred_at_us=T0_US + n, outcome=f"o{n}")) for n in (1, 2)),
    *(("component-stats", SAMPLES["component-stats"] | {"version": n, "event_id": f"c{n}"}) for n in (1, 2)),
]
LATE = [event for event in OTHERS if event[0] == "labeled-trajectories" and event[1]["revision"] == 3]
"""Newest revisions of the trajectories of others."""


def clear(client: Client) -> None:
    stored = [view.stored for view in materialized_views()]
    marks = ("dirty_hours", "cohort_times", "materialized_cohorts", "feedback_marks", "cohort_signals", "worker_hours")
    for table in (*FACTS, *ROLLUPS, *stored, *marks):
        client.command(f"TRUNCATE TABLE {table}")


def contents(client: Client) -> dict[str, list[str]]:
    """Return the rows of facts and rollups, without versions of rollups and without cohorts whose facts are gone."""
    found = {}
    for table in (*FACTS, *ROLLUPS):
        count = COUNTS.get(table, "trajectories")
        what = f"toString(tuple(* EXCEPT version)) FROM {table} FINAL WHERE {count} > 0"
        if table in FACTS:
            what = f"toString(tuple(*)) FROM {table} FINAL"
        found[table] = sorted(row for (row,) in client.query(f"SELECT {what}").result_rows)
    return found | view_contents(client)


def view_contents(client: Client) -> dict[str, list[str]]:
    """Return the rows of all views, also at their finest grain."""
    found = {}
    for name, view in views().items():
        found[name] = view_rows(client, f"SELECT * FROM {name}({RANGE})")
        if view.choices:
            finest = view.sql([*view.by, *view.choices])
            found[f"{name}, finest grain"] = view_rows(client, finest, since=SINCE, until=UNTIL)
    return found


def view_rows(client: Client, query: str, **parameters: int) -> list[str]:
    """Return the rows of a view, sorted."""
    found = client.query(query, parameters=parameters).result_rows
    return sorted(str([rounded(value) for value in row]) for row in found)


def rounded(value: Any) -> Any:
    """Return a value without the error of summing floats in another order."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_a_rollup_is_refreshed_within_seconds(client: Client) -> None:
    insert(client, [*HERS, *OTHERS])
    query = "SELECT sum(trajectories), sum(outcomes), sum(successes) FROM trajectory_hours FINAL"
    wait_until(lambda: client.query(query).result_rows == [(3, 3, 2)])
    failed = "SELECT view, exception FROM system.view_refreshes WHERE database = 'rollups' AND exception != ''"
    assert client.query(failed).result_rows == []
    set_to = f"SELECT count() FROM system.tables WHERE position(create_table_query, 'EVERY {REFRESH_S} SECOND') > 0"
    assert client.query(f"{set_to} AND database = 'rollups'").result_rows == [(len(REFRESHED),)]
    wait_until(lambda: refresh_lag_s(client) <= 5 * REFRESH_S)  # every rollup, since the server's start at the latest


@pytest.fixture(scope="module")
def refreshed_by_test(client: Client) -> Client:
    """The client of a store that refreshes nothing by itself."""
    for name in (*REFRESHED, *(view.name for view in materialized_views())):
        client.command(f"DROP VIEW IF EXISTS {name}_refresh SYNC")
    return client


@pytest.fixture(scope="module")
def expected(refreshed_by_test: Client) -> dict[bool, dict[str, list[str]]]:
    """The tables after each event once, in order; with or without the person."""
    client = refreshed_by_test
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
    assert [view for view in views() if not expected[True][view]] == []


class Delivery(NamedTuple):
    """Batches with every event at least once, in any order."""

    batches: list[list[tuple[str, Any]]]
    refreshes: list[int]
    """Numbers of batches before which the rollups are refreshed, and the rows of cohorts stored."""
    erased_before: int | None
    """Number of the batch before which the person is erased, the number of batches: after all; None: never."""


@st.composite
def deliveries(draw: st.DrawFn) -> Delivery:
    """Draw a delivery of the events of all."""
    events = [*HERS, *OTHERS]
    again = draw(st.lists(st.sampled_from(events), max_size=8))
    order = draw(st.permutations([*events, *again]))
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1), max_size=4)))
    batches = [order[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    refreshes = draw(st.lists(st.integers(0, len(batches) - 1), max_size=2))
    return Delivery(batches, refreshes, draw(st.none() | st.integers(0, len(batches))))


@bounds(
    max_examples=6,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(deliveries())
@example(Delivery([[*HERS, *(one for one in OTHERS if one not in LATE)], LATE], [1], 1)).via(
    "revisions after an erasure"
)
def test_any_delivery_of_the_same_events_leaves_the_same_rows(
    client: Client, expected: dict[bool, dict[str, list[str]]], delivery: Delivery
) -> None:
    batches, refreshes, erased_before = delivery
    clear(client)
    for number, batch in enumerate(batches):
        if number in refreshes:
            refresh(client)
            store_cohorts(client, hours_ago=12 - number)
        if number == erased_before:
            erase(client)
        is_erased = erased_before is not None and number >= erased_before
        # The records of an erased person have no rows.
        insert(client, [one for one in batch if one in OTHERS] if is_erased else batch)
    if erased_before == len(batches):
        erase(client)
        insert(client, OTHERS)  # a replay
    refresh(client)
    found, wanted = contents(client), expected[erased_before is None]
    for table, rows_found in found.items():
        assert rows_found == wanted[table], table
    store_cohorts(client)
    assert set(stored_cohorts(client)) == {view.name for view in materialized_views()}
    for view, rows_found in view_contents(client).items():
        assert rows_found == wanted[view], f"{view} with stored cohorts"


def erase(client: Client) -> None:
    """Delete the person's rows that the tables have now. They are hidden: their parts are not rewritten yet."""
    hers = trajectories_of(client, [ADA])[ADA]
    delete_rows(client, [Target(ADA, hers, ErasureRequest("t", 0))])


def outcome(name: str, revision: int) -> Any:
    """Return a label whose cohort and sums change with the revision; of every end, with and without an outcome."""
    number = int(name[1:])
    call = new_tool_call(call_id="1", name="get", arguments="{}")
    steps = [
        new_labeled_step(step_index=index, event_id=f"{name}-{index}", reward=0.5, return_to_go=0.5)
        | {"tool_calls": [call] * revision, "duration_ms": 2.5, "error": "timeout" if index > number else None}
        for index in range(1 + number % 3)
    ]
    record: Any = trajectory(name, revision=revision, version=number % 2 + revision, steps=steps)
    return record | {
        "agent": f"a{number % 2}",
        "success": [True, False, None][(number // 3 + number + revision) % 3],
        "end": ("terminated", "truncated", "open")[number % 3],
        "pending": [] if number % 2 else ["checked"],
        "reward": number / 4,
        "prompt_tokens": 10 * number,
        "response_tokens": number,
        "tools": [new_tool_use(name="get", calls=len(steps) * revision, errors=0)],
    }


def test_the_rollup_has_the_sums_of_the_statistics_on_the_log(refreshed_by_test: Client) -> None:
    client = refreshed_by_test
    labels = [
        outcome(f"t{number}", revision) for revision in (1, 2) for number in range(17) if number % 3 or revision < 2
    ]
    clear(client)
    insert(client, [("labeled-trajectories", one) for one in [*labels[5:], *labels]])
    refresh(client)
    run = measure_run()
    emitted = run.feed([run.record("labeled-trajectories", one) for one in [*labels, *labels[:5]]])
    newest = {key: event for topic, key, event in emitted if topic == "trajectory-stats" and event["scope"] == "cohort"}
    on_log = sorted(
        (
            *(event["agent"], event["policy_version"], event["trajectories"], event["successes"]),
            *(event["successes"] + event["failures"], event["truncated"], event["steps"], event["errors"]),
            *(event["tool_calls"], event["prompt_tokens"], event["response_tokens"]),
            *(event["reward_sum"], event["duration_ms_sum"]),
        )
        for event in newest.values()
        if not event["tool"] and event["trajectories"]
    )
    query = """
SELECT agent, policy_version, sum(trajectories) AS n, sum(successes), sum(outcomes), sum(truncated), sum(steps),
    sum(errors), sum(calls), sum(prompt_tokens), sum(response_tokens), sum(reward_sum), sum(duration_ms_sum)
FROM {} FINAL GROUP BY agent, policy_version HAVING n > 0
"""
    for table in ("trajectory_hours", "trajectory_days"):
        assert sorted(map(tuple, client.query(query.format(table)).result_rows)) == on_log, table
    assert len(on_log) == 4
    newest_labels = {one["trajectory_id"]: one for one in labels}.values()
    ends = {(one["end"], one["success"], bool(one["pending"])) for one in newest_labels}
    assert ends >= {("truncated", None, False), ("truncated", None, True), ("open", None, False)}


def test_a_day_is_computed_again_once_an_hour_of_it_has_been(refreshed_by_test: Client) -> None:
    """A refresh of hours may lag behind their marks for minutes, as in a replay."""
    client = refreshed_by_test
    clear(client)
    insert(client, OTHERS)
    refresh(client)
    days = f"SELECT DISTINCT day FROM ({statement('trajectory_days', {})})"
    later = "INSERT INTO {0} SELECT * REPLACE (now64(6) + INTERVAL 2 MINUTE AS version) FROM {0}"
    client.command(later.format("trajectory_days"))
    assert client.query(days).result_rows == []
    client.command(later.format("trajectory_hours"))
    assert len(client.query(days).result_rows) == 1


def test_days_that_stay_due_keep_no_other_day_waiting(refreshed_by_test: Client) -> None:
    client = refreshed_by_test
    clear(client)
    labels = [trajectory(f"d{n}", opened_at_us=T0_US - n * 24 * HOUR_US) for n in range(9)]
    insert(client, [("labeled-trajectories", one) for one in labels])
    for _ in range(2):  # a refresh computes seven days
        refresh(client)
    query = "SELECT uniqExact(day), sum(trajectories) FROM trajectory_days FINAL WHERE trajectories > 0"
    assert client.query(query).result_rows == [(9, 9)]
