"""Test what the console counts and marks: time-outs, erasures, decisions about versions, retracted feedback."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from console_trajectories import attempt, put
from sample_records import SAMPLES, feedback, worker_status

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rollup_refresh import refresh
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.services.console.api.curves import curves
from stepstream.services.console.api.decisions import _effect
from stepstream.services.console.api.fleet import fleet
from stepstream.services.console.api.overview import overview
from stepstream.services.console.api.people import MOST_ERASURES, people
from stepstream.services.console.api.review import review
from stepstream.services.console.api.trajectories import trajectories, trajectory
from stepstream.services.console.endpoints import Call, Endpoint, Services
from stepstream.services.console.store import Store
from stepstream.services.console.users import User
from stepstream.topics.events import new_erasure, new_rollout

ADMIN = User("root", "admin", "")
OF_DEFAULT = User("ada", "viewer", "default")
NOW_US = time.time_ns() // 1000
BEGIN_US = NOW_US - 600 * 10**6


@pytest.fixture(scope="module")
def services(own_database: Callable[[str], Settings]) -> Iterator[Services]:
    settings = own_database("console_figures")
    migrate(settings)
    put(
        settings,
        *attempt("good", ["a"], BEGIN_US, group_id="g", success=True),
        *attempt("bad", ["a"], BEGIN_US, group_id="g", success=False, harness_version="h2"),
        *attempt("late", ["a"], BEGIN_US, group_id="g", end="truncated", flags=["held:strange"]),
        *attempt("lost", ["a"], BEGIN_US, group_id="g", end="open"),
    )
    decisions: list[tuple[str, dict[str, Any]]] = [
        ("promote", {"stable_version": 1}),
        ("canary", {"stable_version": 1, "canary_version": 2, "canary_share": 0.1}),
        ("rollback", {"stable_version": 1}),
        ("canary", {"stable_version": 1, "canary_version": 3, "canary_share": 0.1}),
        ("canary", {"stable_version": 1}),
        ("pin", {"stable_version": 1, "pinned_versions": [3]}),
        ("promote", {"stable_version": 4, "previous_stable_version": 1}),
        ("rollback", {"stable_version": 1}),
        ("follow", {}),
    ]
    put(
        settings,
        *(
            (
                "rollouts",
                new_rollout(event_id=f"r{at}", occurred_at_us=BEGIN_US + at, model="planted", action=action, **of),
            )
            for at, (action, of) in enumerate(decisions)
        ),
        *(
            ("worker-status", worker_status(f"w{at}", BEGIN_US + at, model="planted", version=version))
            for at, version in enumerate((1, 2, 1))
        ),
    )
    store = Store(settings)
    yield cast(Services, SimpleNamespace(settings=settings, store=store))
    store.close()


@pytest.fixture
def ask(services: Services) -> Callable[..., Any]:
    def call(endpoint: Endpoint, user: User = ADMIN, **parameters: str) -> Any:
        return cast(Any, endpoint.read)(Call(user, services, parameters))

    return call


def test_a_time_out_is_a_failure(ask: Callable[..., Any], services: Services) -> None:
    for outcome, found in (("success", {"good"}), ("failure", {"bad", "late"}), ("none", {"lost"})):
        rows = ask(trajectories, outcome=outcome, model="planted")["trajectories"]
        assert {row["trajectory_id"] for row in rows} == found, outcome
    totals = ask(overview)["totals"]
    assert (totals["trajectories"], totals["outcomes"], totals["successes"]) == (4, 3, 1)
    [newest] = ask(curves)["success"]
    assert (newest["trajectories"], newest["outcomes"], newest["successes"]) == (4, 3, 1)
    group = {row["trajectory_id"]: row["end"] for row in ask(trajectory, id="good", tenant="default")["group"]}
    assert group["late"] == "truncated"


def test_quarantine_tells_the_outcome_as_the_list_does(ask: Callable[..., Any]) -> None:
    names = ("trajectory_id", "success", "end", "pending")
    listed, held = ask(trajectories, outcome="held")["trajectories"], ask(people)["quarantine"]
    assert [[row[name] for name in names] for row in held] == [["late", None, "truncated", []]]
    assert [[row[name] for name in names] for row in listed] == [["late", None, "truncated", []]]


def proof(subject: str, at_us: int) -> Any:
    of = {"event_id": subject, "request_id": subject, "subject": subject, "occurred_at_us": at_us}
    return SAMPLES["erasure-proofs"] | of


def test_an_erasure_is_finished_though_its_proof_is_not_among_the_newest(
    ask: Callable[..., Any], services: Services
) -> None:
    subjects = [f"{n:040x}" for n in range(2 * MOST_ERASURES)]
    asked = [subjects[0], *subjects[-MOST_ERASURES + 1 :]]
    put(
        services.settings,
        *(
            ("erasures", new_erasure(event_id=one, occurred_at_us=BEGIN_US + n, tenant="default", subject=one))
            for n, one in enumerate(asked)
        ),
        # The first person has none; those asked for last have the oldest.
        *(("erasure-proofs", proof(one, NOW_US - n * 1000)) for n, one in enumerate(subjects[1:])),
    )
    erasures = ask(people, OF_DEFAULT)["erasures"]  # another user: not from memory
    assert [one["subject"] for one in erasures if one["finished_at"] is None] == subjects[:1]
    assert len(erasures) == 1 + MOST_ERASURES


def test_the_effect_of_a_decision_counts_time_outs(services: Services) -> None:
    decision: Any = {"tenant": "default", "agent": "a", "model": "planted", "occurred_at_us": BEGIN_US - 10**6}
    before, since = _effect(Call(ADMIN, services, {}), decision, NOW_US)
    assert (before["outcomes"], since["outcomes"]) == (0, 3)
    assert since["rate"] == pytest.approx(1 / 3)


def test_curves_are_of_one_harness_if_it_is_chosen(ask: Callable[..., Any], services: Services) -> None:
    with connection.connect(services.settings, database=services.settings.clickhouse.database) as client:
        refresh(client)
    for since in ("24h", "30d"):  # the facts, the rollup
        answer = ask(curves, harness="h2", since=since)
        assert answer["harnesses"] == ["h2"]
        [newest] = answer["success"]
        assert (newest["trajectories"], newest["outcomes"], newest["successes"]) == (1, 1, 0)


def test_marks_are_decisions_and_not_what_workers_served(ask: Callable[..., Any]) -> None:
    answer = ask(curves, model="planted")
    assert [(row["what"], row["previous"], row["version"]) for row in reversed(answer["rollouts"])] == [
        ("promote", None, 1),
        ("canary", 1, 2),
        ("canary_rollback", 2, 1),
        ("canary", 1, 3),
        ("canary_end", 3, 1),
        ("promote", 1, 4),
        ("rollback", 4, 1),
        ("follow", 1, None),
    ]
    assert {(row["previous"], row["version"]) for row in answer["swaps"]} == {(1, 2), (2, 1)}
    assert ask(curves, OF_DEFAULT, model="planted")["rollouts"] == []


def test_the_broker_s_clock_says_when_a_worker_was_heard(ask: Callable[..., Any], services: Services) -> None:
    settings = services.settings
    # The clock of the worker is two hours behind, and was set back between its statuses.
    statuses = [
        worker_status(f"behind{n}", NOW_US - (7200 + n) * 10**6, worker_id="behind", version=n, state=state)
        for n, state in ((1, "starting"), (2, "serving"))
    ]
    inserted = [
        row
        for n, status in enumerate(statuses)
        for _, row in rows("worker-status", status, written_us=NOW_US - (10 - n) * 10**6)
    ]
    with connection.connect(settings, database=settings.clickhouse.database) as client:
        client.insert("worker_status", inserted, column_names=TABLES["worker_status"].columns)
        in_view = client.query(
            "SELECT toUnixTimestamp64Micro(seen_at), version FROM workers WHERE worker_id = 'behind'"
        ).result_rows
    [row] = [row for row in ask(fleet, since="15m")["workers"] if row["worker_id"] == "behind"]
    assert (row["seen_at"], row["version"], row["state"]) == ((NOW_US - 9 * 10**6) // 1000, 2, "serving")
    assert in_view == [(NOW_US - 9 * 10**6, 2)]


def test_retracted_feedback_leaves_the_queues(ask: Callable[..., Any], services: Services) -> None:
    def given(event_id: str, trajectory_id: str, **fields: Any) -> tuple[str, Any]:
        of = {"trajectory_id": trajectory_id, "occurred_at_us": NOW_US, "name": "quality"} | fields
        return ("governed-feedback", feedback(event_id, **of))

    def queues(since: str) -> list[set[str]]:
        answer = ask(review, since=since)
        return [{row["trajectory_id"] for row in answer[name]} for name in ("disagreement", "unsure")]

    put(
        services.settings,
        *(given(f"{name}-judge", name, source="judge", value=0.0) for name in ("good", "bad")),
        *(given(f"{name}-test", name, source="test", value=1.0) for name in ("good", "bad")),
        given("seen", "bad", source="person:ada", name="review"),
        given("seen too", "late", source="person:ada", name="review"),
    )
    assert queues("7d") == [{"good"}, {"good", "lost"}]
    put(
        services.settings,
        given("taken back", "good", source="judge", value=None, retracts="good-judge"),
        given("not seen", "bad", source="person:ada", name="review", value=None, retracts="seen"),
    )
    assert queues("6d") == [{"bad"}, {"good", "bad", "lost"}]  # another range: not from memory
