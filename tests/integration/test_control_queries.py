"""Test the controller's queries on planted rows."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest
from clickhouse_connect.driver.client import Client
from view_rows import AT, TENANT, attempt, plant

from stepstream.analytics.success import Attempts
from stepstream.analytics.tools import Calls
from stepstream.config import Settings
from stepstream.services.control.approved import ApprovedVersion
from stepstream.services.control.decide.records import Canary, Groups
from stepstream.services.control.optimise.read_view import newest
from stepstream.services.control.queries import StoreQueries
from stepstream.services.control.scope import Scope
from stepstream.services.control.statistics import BeforeRow, Position, Statistics, ToolRow

SCOPE = Scope(TENANT, "a", "m")
MINUTE_US = 60_000_000
VIOLATION: dict[str, object] = {
    "component.step": [0],
    "component.name": ["violation"],
    "component.kind": ["shadow"],
    "component.source": ["environment"],
    "component.value": [1.0],
    "component.raw": [1.0],
    "component.weight": [0.0],
    "component.final": [True],
}


def us(minutes: float) -> int:
    """Return the time `minutes` after `AT`."""
    return round((AT + timedelta(minutes=minutes)).timestamp() * 1e6)


@pytest.fixture
def queries(view_settings: Settings, view_client: Client) -> Iterator[StoreQueries]:
    with closing(StoreQueries(view_settings)) as queries:
        yield queries


def ask(queries: StoreQueries, *, since: float = -60, promoted: float | None = None) -> Statistics:
    """Ask at 20 minutes after `AT`."""
    return queries.statistics(SCOPE, Position("p", 0), us(20), us(since), None if promoted is None else us(promoted))


def served(name: str, success: bool | None, minutes: float, **fields: object) -> dict[str, object]:
    at = AT + timedelta(minutes=minutes)
    values = {"split": "train", "track": "stable", "opened_at": at, "started_at": at, **fields}
    return attempt(name, success, **values)


def test_outcomes_are_in_order_of_assignment_with_cluster_family_and_failure(
    queries: StoreQueries, view_client: Client
) -> None:
    rows = [
        served("easy/2/0", True, 2, track="canary", group_id="g1"),
        served("easy/1/0", False, 1, user="u", **{"call.tool": ["t"], "call.error": ["invalid_arguments"]}),
        served("hard/1/0", False, 3, **{"call.tool": ["t"], "call.error": ["timeout"]}),
        served("hard/2/0", None, 4, end="truncated"),
        served("hard/3/0", None, 5),
        served("hard/4/0", True, 6, split="eval"),
        served("hard/5/0", True, 7, agent="other"),
        served("hard/6/0", True, 8, parent_trajectory_id="hard/1/0"),
        served("hard/7/0", True, -61),
    ]
    for row in rows:
        calls = len(row.get("call.tool", []))  # type: ignore[arg-type]
        row |= {"call.step": [0] * calls, "call.ms": [1.0] * calls, "call.tool": row.get("call.tool", [])}
        row["call.error"] = row.get("call.error", [])
        plant(view_client, "trajectories", [row])
    at = AT + timedelta(minutes=10)
    step = {"tenant": TENANT, "trajectory_id": "open", "occurred_at": at, "agent": "a", "model": "m", "split": "train"}
    plant(view_client, "steps", [step | {"track": "canary", "task_id": "easy/9", "source_key": 1}])

    found = ask(queries)
    assert found.missing == ()
    assert [(one.track, one.success, one.family, one.failure, one.harmed) for one in found.outcomes] == [
        ("stable", False, "easy", "format", False),
        ("canary", True, "easy", "", False),
        ("stable", False, "hard", "tool", False),
        ("stable", False, "hard", "capability", True),
        ("canary", None, "easy", "", False),
    ]
    assert [one.trajectory_id for one in found.outcomes][:2] == ["easy/1/0", "easy/2/0"]
    assert found.outcomes[-1].trajectory_id == "open"
    assert found.outcomes[0].cluster.startswith("u:")
    assert found.outcomes[1].cluster == "g:g1"
    assert found.served_families == {"easy", "hard"}
    assert found.trained_families == {"easy"}
    assert queries.trained(SCOPE, us(20)) == {"easy": Attempts(1, 1)}
    assert queries.scopes(us(-60)) == [SCOPE, Scope(TENANT, "other", "m")]

    promoted = ask(queries, since=3, promoted=3)
    assert promoted.before == (
        BeforeRow("easy", "h", "3", Attempts(1, 0)),
        BeforeRow("hard", "h", "3", Attempts(1, 1)),
    )
    assert len(promoted.outcomes) == 3


def test_only_roots_that_began_in_the_range_are_open(queries: StoreQueries, view_client: Client) -> None:
    about = {"tenant": TENANT, "agent": "a", "model": "m", "split": "train", "track": "stable"}
    for number, (name, index, minutes, parent) in enumerate(
        (
            ("open", 0, 1, ""),
            ("open", 1, 9, ""),
            ("closed", 0, -70, ""),
            ("closed", 1, 8, ""),
            ("child", 0, 2, "open"),
            ("long", 0, -70, ""),
            ("long", 1, 7, ""),
        )
    ):
        at = AT + timedelta(minutes=minutes)
        step = {"trajectory_id": name, "step_index": index, "occurred_at": at, "source_key": number, "tenant": TENANT}
        plant(view_client, "steps", [about | step])
        plant(view_client, "step_contents", [step | {"parent_trajectory_id": parent}])
    plant(view_client, "trajectories", [served("closed", True, -70)])
    assert [(one.trajectory_id, one.success) for one in ask(queries).outcomes] == [("open", None)]


def test_a_canarys_trajectories_without_an_outcome_count_for_harm(queries: StoreQueries, view_client: Client) -> None:
    canary: dict[str, object] = {"track": "canary"}
    for number, fields in enumerate((canary, canary | VIOLATION, {"harness_version": "new"} | VIOLATION, VIOLATION)):
        plant(view_client, "trajectories", [served(f"silent/{number}", None, number, **fields)])
    found = queries.statistics(SCOPE, Position("p", 0), us(20), us(-60), None, "new").outcomes
    assert [(one.trajectory_id, one.success, one.failure, one.harmed) for one in found] == [
        ("silent/0", None, "unjudged", False),
        ("silent/1", None, "unjudged", True),
        ("silent/2", None, "unjudged", True),
    ]
    assert [one.trajectory_id for one in ask(queries).outcomes] == ["silent/0", "silent/1"]


def test_an_outcome_that_is_late_is_waited_for(queries: StoreQueries, view_client: Client) -> None:
    rows = [
        served("late/1", None, 1, pending=["outcome"]),
        served("late/2", None, 2, pending=["outcome"], **VIOLATION),
        served("late/3", None, 3, pending=["outcome"], end="truncated"),
        served("late/4", True, 4, pending=["thumbs"]),
        served("late/5", None, 5),
        served("late/6", None, 6, end="truncated"),
    ]
    for row in rows:
        plant(view_client, "trajectories", [row])
    found = [(one.trajectory_id, one.success, one.failure, one.harmed) for one in ask(queries).outcomes]
    assert found == [
        ("late/1", None, "", False),
        ("late/2", None, "", True),
        ("late/3", None, "", False),
        ("late/4", True, "", False),
        ("late/6", False, "capability", True),
    ]
    plant(view_client, "trajectories", [served("late/1", None, 1, revision=2), served("late/2", True, 2, revision=2)])
    after = [(one.trajectory_id, one.success) for one in ask(queries).outcomes]
    assert after[:2] == [("late/2", True), ("late/3", None)]


def test_groups_and_staleness_are_counted(queries: StoreQueries, view_client: Client) -> None:
    groups = {"g1": (True, False), "g2": (True, True), "g3": (False,)}
    plant(
        view_client,
        "trajectories",
        (
            served(f"t/{group}/{i}", success, i, group_id=group)
            for group, outcomes in groups.items()
            for i, success in enumerate(outcomes)
        ),
    )
    found = ask(queries)
    assert found.groups == Groups(2, 1, 0.75)
    assert found.staleness_p95 is None


def test_a_cluster_before_a_promotion_counts_once(queries: StoreQueries, view_client: Client) -> None:
    group = [served(f"easy/1/{i}", i < 2, 1, group_id="g1") for i in range(8)]
    users = [served(f"{name}/{u}{i}", True, 2, user=u) for name in ("easy", "hard") for u in "uv" for i in range(4)]
    alone = [served(f"{family}/3/{i}", True, 2) for family in ("easy", "hard") for i in range(3)]
    plant(view_client, "trajectories", [*group, *users, *alone])
    before = ask(queries, since=3, promoted=3).before
    # easy: 3 alone, a group with 2 of 8 successes, and halves of two users; hard: 3 alone and the other halves
    assert [(row.family, row.attempts) for row in before] == [("easy", Attempts(5, 4)), ("hard", Attempts(4, 4))]


def test_outcomes_name_the_versions_that_served_them(queries: StoreQueries, view_client: Client) -> None:
    both = {"version_min": 7, "version_max": 8}
    before = [served(f"easy/{i}/0", i > 0, 1, harness_version="old" if i else "h") for i in range(4)]
    closed = [served("easy/8/0", True, 4), served("easy/9/0", True, 5, harness_version="new", **both)]
    for row in [*before, *closed]:
        plant(view_client, "trajectories", [row])
    step = {"tenant": TENANT, "trajectory_id": "open", "agent": "a", "model": "m", "split": "train", "track": "stable"}
    for number, version in enumerate((7, -1, 8)):
        at = AT + timedelta(minutes=6 + number)
        versions = {"harness_version": "h", "version_min": version, "version_max": version}
        place = {"occurred_at": at, "step_index": number, "source_key": number, "task_id": "easy/1"}
        plant(view_client, "steps", [step | versions | place])
    found = ask(queries, since=3, promoted=3)
    assert found.missing == ()
    served_by = [(one.trajectory_id, one.harness_version, one.weights_version) for one in found.outcomes]
    assert served_by == [("easy/8/0", "h", "3"), ("easy/9/0", "new", "7-8"), ("open", "h", "7-8")]
    assert found.before == (
        BeforeRow("easy", "h", "3", Attempts(1, 0)),
        BeforeRow("easy", "old", "3", Attempts(3, 3)),
    )


def test_a_tool_window_is_compared_with_the_time_before_it(queries: StoreQueries, view_client: Client) -> None:
    calls = {"call.step": [0, 0], "call.tool": ["get", "get"], "call.error": ["", "timeout"], "call.ms": [1.0, 1.0]}
    plant(view_client, "trajectories", [served("t/1", True, 10, **calls), served("t/2", True, -10, **calls)])
    hour = (AT - timedelta(hours=2)).replace(minute=0)
    rollup = {"hour": hour, "tenant": TENANT, "tool": "get", "agent": "a", "model": "m", "calls": 50, "failed": 1}
    plant(view_client, "tool_hours", [rollup | {"error.class": ["timeout"], "error.calls": [1], "version": AT}])
    assert ask(queries).tools == (ToolRow("get", "timeout", Calls(52, 2), Calls(2, 1)),)


def test_a_table_without_an_answer_is_missing(queries: StoreQueries, view_client: Client) -> None:
    view_client.command("RENAME TABLE training_decisions TO away")
    try:
        assert ask(queries).missing == ("training_decisions",)
    finally:
        view_client.command("RENAME TABLE away TO training_decisions")


def test_drift_is_measured_against_the_version_that_a_person_promoted(
    queries: StoreQueries, view_client: Client
) -> None:
    assert queries.promoted_by_hand("m") == []
    for number, (version, author, action) in enumerate(
        ((1, "ada", "promote"), (2, "control plane", "promote"), (3, "ada", "rollback"))
    ):
        row = {"event_id": f"r{number}", "occurred_at": AT + timedelta(minutes=number), "model": "m"}
        plant(view_client, "rollouts", [row | {"stable_version": version, "author": author, "action": action}])
    assert queries.promoted_by_hand("m") == [ApprovedVersion(us(0), "1")]
    rows = [served(f"t/{n}", n < 2, n, version_min=1, version_max=1) for n in range(3)]
    rows += [served("t/3", True, 3), served("t/4", True, -1, version_min=1, version_max=1)]
    plant(view_client, "trajectories", rows)
    weights, prompt = Canary("weights", "4", "3", us(5), 0.1), Canary("prompt", "h2", "h1", us(5), 0.1)
    assert queries.attempts_of(SCOPE, weights, ApprovedVersion(us(0), "1")) == Attempts(3, 2)
    assert queries.attempts_of(SCOPE, prompt, ApprovedVersion(us(0), "h")) == Attempts(4, 3)


def test_the_prompts_of_a_shadow_replay_are_of_trajectories_that_the_learner_did_not_train_on(
    view_client: Client,
) -> None:
    names = ("trained", "dropped", "unseen")
    rows = [served(f"{name}/0", True, 1) for name in names] + [served("other model/0", True, 1, model="n")]
    for row in rows:
        plant(view_client, "trajectories", [row])
    ids = {str(row["task_id"]): str(row["trajectory_id"]) for row in rows}
    decided = {"tenant": TENANT, "model": "m", "occurred_at": AT, "revision": 1}
    plant(
        view_client,
        "training_decisions",
        [
            decided | {"event_id": name, "trajectory_id": ids[name], "outcome": outcome}
            for name, outcome in (("trained", "trained"), ("dropped", "stale"))
        ],
    )

    def read(untrained_by: str) -> set[str]:
        found = newest(view_client, TENANT, "a", 100, untrained_by=untrained_by)
        return {name for name, one in ids.items() if one in found}

    assert read("") == {*names, "other model"}
    assert read("m") == {"dropped", "unseen"}
