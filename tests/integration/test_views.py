"""Test the views on the embedded store: columns, examples, and the figures of shared/METRICS.md on planted rows."""

import re
from datetime import timedelta
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from view_rows import AT, RANGE, TENANT, attempt, attempts, five_tasks, hour, plant, read, read_one, signal

from stepstream.jobs.clickhouse.create_views import create_views
from stepstream.jobs.clickhouse.views import View, views


def near(expected: Any) -> Any:
    return pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("each", views().values(), ids=list(views()))
def test_columns_and_example_agree_with_the_catalogue(view_client: Client, each: View) -> None:
    found = view_client.query(f"SELECT * FROM {each.name}({RANGE}) LIMIT 0")
    columns = [(name, type_.name) for name, type_ in zip(found.column_names, found.column_types, strict=True)]
    assert [name for name, _ in columns[: len(each.grain)]] == list(each.grain)
    assert columns[len(each.grain) :] == [(column.name, column.type) for column in each.columns]
    view_client.query(each.example)
    for choice in each.choices:
        view_client.query(each.sql([*each.by, choice]), parameters={"since": "2026-11-20", "until": "2026-11-21"})


def test_views_are_replaced_only_where_they_differ(view_client: Client) -> None:
    assert create_views(view_client) == []
    view_client.command("CREATE OR REPLACE VIEW task_outcomes AS SELECT 1 AS one")
    assert create_views(view_client) == ["task_outcomes"]


def test_the_definition_of_a_view_counts_from_the_next_statement_on(view_client: Client) -> None:
    """The embedded store runs the definitions of this release as text."""
    plant(view_client, "trajectories", five_tasks())
    query = f"SELECT * FROM pass_rates({RANGE}) ORDER BY ALL"
    rows = view_client.query(query).result_rows
    assert rows
    wrong = query.replace("*", "nothing")
    with pytest.raises(DatabaseError, match=r"SELECT nothing FROM \("):  # the text of the definition
        view_client.query(wrong)
    definition = "SELECT {until:DateTime('UTC')} - {since:DateTime('UTC')} AS seconds"
    view_client.command(f"CREATE OR REPLACE VIEW pass_rates AS {definition}")
    assert view_client.query(query).result_rows == [(86400,)]
    with pytest.raises(DatabaseError, match=r"SELECT nothing FROM pass_rates\("):
        view_client.query(wrong)
    assert create_views(view_client) == ["pass_rates"]
    assert view_client.query(query).result_rows == rows


def test_a_view_has_the_rows_of_its_definition(view_client: Client) -> None:
    """With a WITH clause, the embedded store leaves the view to the engine."""
    signals = ("confidence", 0.8), ("perturbation", 1.0), ("violation", 0.5), ("kept", 1.0)
    plant(view_client, "trajectories", [*five_tasks(), attempt("t/9", True, trajectory_id="about")])
    plant(view_client, "feedback", [signal("about", name, value) for name, value in signals])
    filled = set()
    for name in views():
        query = f"SELECT * FROM {name}({RANGE}) ORDER BY ALL"
        rows = view_client.query(query).result_rows
        assert str(rows) == str(view_client.query(f"WITH 1 AS one {query}").result_rows), name
        # An answer is not kept if the text of its statement has `now()`, as some definitions do.
        kept = f"{query} SETTINGS use_query_cache = 1"
        assert str(rows) == str(view_client.query(kept).result_rows), name
        assert str(rows) == str(view_client.query(query, settings={"use_query_cache": 1}).result_rows), name
        filled |= {name} if rows else set()
    assert len(filled) >= 15, filled


def test_pass_rates_of_five_tasks(view_client: Client) -> None:
    plant(view_client, "trajectories", five_tasks())
    rows = {row["k"]: row for row in read(view_client, "pass_rates")}
    assert rows[1]["pass_at_k"] == near(0.585)
    assert (rows[3]["pass_at_k"], rows[3]["pass_hat_k"]) == near((0.764286, 0.355))
    assert (rows[8]["pass_at_k"], rows[8]["pass_hat_k"]) == (0.75, 0.25)
    assert (rows[8]["tasks"], rows[8]["tasks_left_out"], rows[8]["attempts"]) == (4, 1, 32)


def test_pass_rates_without_enough_attempts_are_null_with_a_reason(view_client: Client) -> None:
    plant(view_client, "trajectories", [attempt("t/0", True), attempt("t/1", None)])
    row = read_one(view_client, "pass_rates", "k = 2")
    assert (row["pass_at_k"], row["tasks"], row["without_outcome"]) == (None, 0, 1)
    assert row["reason"] == "no task has k attempts with an outcome"


def test_a_revision_and_a_redelivery_count_once(view_client: Client) -> None:
    first, second = attempt("t/0", False), attempt("t/0", True, revision=2)
    for row in (first, second, first):
        plant(view_client, "trajectories", [row])
    row = read_one(view_client, "task_outcomes")
    assert (row["attempts"], row["successes"]) == (1, 1)


def test_rows_of_an_earlier_version_of_an_hour_do_not_count(view_client: Client) -> None:
    """A refresh writes all rows of an hour: what it lacks is gone."""
    plant(view_client, "trajectories", [attempt("t/0", True)])
    row = {"hour": AT.replace(minute=0), "tenant": TENANT, "agent": "a", "model": "m", "harness_version": "h"}
    row |= {"policy_version": 3, "split": "eval", "trajectories": 1, "outcomes": 1}
    view_client.command("TRUNCATE TABLE task_hours")
    plant(view_client, "task_hours", [row | {"task_id": task, "version": AT} for task in ("old", "older")])
    plant(view_client, "task_hours", [row | {"task_id": "new", "version": AT + timedelta(seconds=1)}])
    assert [found["task_id"] for found in read(view_client, "task_outcomes")] == ["new"]


def test_a_condition_on_any_name_finds_the_rows_of_its_cohorts(view_client: Client) -> None:
    for n, agent in enumerate(("a", "b")):
        plant(view_client, "trajectories", [attempt(f"t{n}/0", False, agent=agent), attempt("t/1", True, agent=agent)])
    for view in ("task_outcomes", "learnability", "long_horizon", "pass_rates", "failure_clusters"):
        found = read(view_client, view)
        for where in ("agent = 'a'", "agent != 'a'", "agent = 'a' AND tenant = 'default'", "split = 'train'"):
            kept = {"agent = 'a'": "a", "agent != 'a'": "b", "agent = 'a' AND tenant = 'default'": "a"}.get(where, "")
            chosen = read(view_client, view, where)
            assert sorted(map(repr, chosen)) == sorted(repr(row) for row in found if row["agent"] == kept), view


@pytest.mark.parametrize(
    ("since", "until", "attempts"),
    [
        ("10:00:00", "13:00:00", 4),
        ("10:30:00", "12:30:00", 2),
        ("10:30:01", "12:30:01", 2),
        ("10:59:59", "12:00:01", 1),
        ("11:10:00", "11:40:00", 1),
        ("10:00:00", "11:00:00", 2),
    ],
)
def test_a_range_may_begin_and_end_within_an_hour(view_client: Client, since: str, until: str, attempts: int) -> None:
    minutes = (-20, 0, 60, 120)
    rows = [attempt(f"t/{n}", True, opened_at=AT + timedelta(minutes=late)) for n, late in enumerate(minutes)]
    plant(view_client, "trajectories", rows)
    view = f"task_outcomes(since = '2026-11-20 {since}', until = '2026-11-20 {until}')"
    assert view_client.query(f"SELECT sum(attempts) FROM {view}").result_rows == [(attempts,)]


def test_cohorts_are_apart_in_whole_hours_and_in_parts_of_hours(view_client: Client) -> None:
    names = ("tenant", "agent", "model", "environment", "harness_version", "track", "split")
    others: list[dict[str, Any]] = [{}, *({name: "other"} for name in names), {"version_max": 4}]
    for n, other in enumerate(others):
        times = (AT, AT + timedelta(hours=1))  # the first from the facts, the second from the rollup by hour
        plant(
            view_client,
            "trajectories",
            [attempt(f"t/{n}{i}", True, opened_at=at, **other) for i, at in enumerate(times)],
        )
    view = "(since = '2026-11-20 10:30:00', until = '2026-11-20 12:00:00')"
    columns = ", ".join((*names, "policy_version"))
    first: dict[str, Any] = {name: attempt("t/0", True).get(name, "") for name in names} | {"policy_version": 3}
    expected = [
        first | {"policy_version" if name == "version_max" else name: value for name, value in other.items()}
        for other in others
    ]
    for name, count in {
        "task_outcomes": "attempts",
        "learnability": "tasks + 1",
        "long_horizon": "attempts",
        "pass_rates": "attempts",
    }.items():
        found = view_client.query(f"SELECT {columns}, max({count}) AS n FROM {name}{view} GROUP BY {columns}")
        assert {tuple(row) for row in found.result_rows} == {(*row.values(), 2) for row in expected}, name


def test_a_time_out_is_a_failure_once_no_feedback_is_waited_for(view_client: Client) -> None:
    late = timedelta(hours=1, minutes=10)  # read from the facts, not from the rollup by hour
    for name, fields in {"t/0": {}, "t/1": {"pending": ["checked"]}}.items():
        rows = [attempt(f"{name}{n}", None, end="truncated", opened_at=AT + n * late, **fields) for n in (0, 1)]
        plant(view_client, "trajectories", rows)
    found = view_client.query(
        "SELECT sum(attempts), sum(successes) FROM "
        "task_outcomes(since = '2026-11-20 10:00:00', until = '2026-11-20 11:50:00')"
    )
    assert found.result_rows == [(2, 0)]


def test_a_task_family_ends_before_the_last_separator(view_client: Client) -> None:
    tasks = ["plain", "a/1", "a/b/1", "a:b#1", "a#b/c:1", "a/", "/1", "/", "Größe/ß", "a\n/b\n1", "a/b$"]
    plant(view_client, "trajectories", [attempt(f"{task}/0", True) for task in tasks])
    found = {row["task_family"] for row in read(view_client, "learnability")}
    assert found == {re.sub(r"[/:#][^/:#]*\Z", "", task) for task in tasks}


def test_success_has_wilsons_interval(view_client: Client) -> None:
    plant(view_client, "trajectory_hours", [hour(trajectories=12, outcomes=10, successes=7)])
    plant(view_client, "trajectory_hours", [hour(policy_version=4, trajectories=20, outcomes=20)])
    plant(view_client, "trajectory_hours", [hour(policy_version=5, trajectories=1)])
    rows = {row["policy_version"]: row for row in read(view_client, "success_by_version")}
    assert (rows[3]["attempts"], rows[3]["success_rate"]) == (12, 0.7)
    assert (rows[3]["wilson_low"], rows[3]["wilson_high"]) == near((0.396778, 0.892209))
    assert (rows[4]["wilson_low"], rows[4]["wilson_high"]) == near((0, 0.161125))
    assert (rows[5]["success_rate"], rows[5]["wilson_low"]) == (None, None)
    assert rows[5]["reason"] == "no attempt has an outcome"


def test_reward_components(view_client: Client) -> None:
    names = {"component.name": ["outcome", "length"], "component.kind": ["outcome", "penalty"]}
    sums = {"component.n": [4, 2], "component.total": [2.0, 6.0], "component.squares": [2.0, 20.0]}
    plant(
        view_client,
        "component_hours",
        [
            {
                **{k: v for k, v in hour().items() if k != "harness_version"},
                "trajectories": 4,
                **names,
                **sums,
                "component.paid": [2.0, -3.0],
            }
        ],
    )
    rows = {row["name"]: row for row in read(view_client, "reward_components_by_hour")}
    assert (rows["outcome"]["mean"], rows["outcome"]["paid"]) == (0.5, 0.5)
    assert rows["length"]["deviation"] == near(2**0.5)


def tool(hours: float, calls: int, failed: int, **fields: Any) -> dict[str, Any]:
    bins = {"ms.bin": [48, 60], "ms.calls": [calls - 1, 1]}  # 1.1^48.5 is 102 ms
    errors = {"error.class": ["timeout"], "error.calls": [failed]}
    who = {"tenant": TENANT, "tool": "search", "agent": "a", "model": "m"}
    return {
        "hour": AT.replace(minute=0) + timedelta(hours=hours),
        **who,
        "calls": calls,
        "failed": failed,
        **errors,
        **bins,
        "version": AT,
        **fields,
    }


@pytest.mark.parametrize(("errors", "low", "alert"), [(9, 0.032997, False), (15, 0.066439, True)])
def test_a_tools_errors_against_its_baseline(view_client: Client, errors: int, low: float, alert: bool) -> None:
    plant(view_client, "tool_hours", [tool(-72, 1800, 36), tool(0, 120, errors)])
    row = read_one(view_client, "tool_health")
    assert (row["calls"], row["errors"], row["baseline_calls"], row["alert"]) == (120, errors, 1800, alert)
    assert (row["error_rate_low"], 2 * row["baseline_rate"]) == near((low, 0.040533))
    assert row["p95_ms"] == pytest.approx(102, rel=0.05)
    assert row["p95_ratio"] == 1
    by_class = read_one(view_client, "tool_errors")
    assert (by_class["error_class"], by_class["class_errors"], by_class["alert"]) == ("timeout", errors, alert)


def test_an_unknown_error_raises_an_alert_at_three(view_client: Client) -> None:
    unknown = {"error.class": ["unknown"], "error.calls": [3]}
    plant(view_client, "tool_hours", [tool(0, 10, 3, **unknown)])
    assert read_one(view_client, "tool_errors")["alert"] is True
    assert read_one(view_client, "tool_health")["reason"] == "fewer than 20 calls"


def test_staleness(view_client: Client) -> None:
    plant(
        view_client,
        "trajectory_hours",
        [
            hour(trajectories=10, **{"lag.versions": [0, 2], "lag.trajectories": [9, 1]}),
            hour(trajectories=10, track="canary", **{"lag.versions": [], "lag.trajectories": []}),
        ],
    )
    rows = {row["track"]: row for row in read(view_client, "staleness")}
    assert (rows[""]["mean"], rows[""]["p50"], rows[""]["p95"], rows[""]["largest"]) == (0.2, 0, 2, 2)
    assert (rows["canary"]["mean"], rows["canary"]["reason"]) == (None, "no trajectory names its version")


def test_health_of_updates(view_client: Client) -> None:
    update = {"event_id": "u", "occurred_at": AT, "model": "m", "root": 0, "update": 1, "learner_version": 1}
    figures = {"effective_share": 0.5, "clip_share": 0.25, "tokens": 100.0}
    plant(view_client, "learner_updates", [{**update, "figures": figures}, {**update, "update": 2, "figures": {}}])
    first, second = read(view_client, "learner_updates_health", "1 ORDER BY update")
    assert (first["effective_share"], first["effective_tokens"], first["clip_share"]) == (0.5, 50, 0.25)
    assert (second["effective_share"], second["reason"]) == (None, "the objective weighs no token")
    lag = {"occurred_at": AT, "model": "m", "root": 0, "update": 1, "least": 0, "most": 0}
    plant(
        view_client,
        "learner_update_lags",
        [{**lag, "tokens": 30, "effective_share": 1.0}, {**lag, "update": 2, "tokens": 10, "effective_share": 0.2}],
    )
    assert read_one(view_client, "learner_staleness_weights")["effective_share"] == near(0.8)


def test_cost_per_success(view_client: Client) -> None:
    counts = {"trajectories": 4, "outcomes": 4, "successes": 3, "prompt_tokens": 50, "response_tokens": 10}
    plant(view_client, "trajectory_hours", [hour(**counts, costed=4, cost_usd="0.18", duration_ms_sum=3000.0)])
    plant(view_client, "trajectory_hours", [hour(**counts, costed=3, cost_usd="0.08", policy_version=4)])
    known, unknown = read(view_client, "cost_per_success", "1 ORDER BY policy_version")
    assert (known["usd_per_success"], known["tokens_per_success"], known["seconds_per_success"]) == near((0.06, 20, 1))
    assert (unknown["usd_per_success"], unknown["tokens_per_success"]) == (None, 20)
    assert unknown["reason"] == "attempts without a cost: fill gateway.prices"


def test_clear_and_classic(view_client: Client) -> None:
    cases = zip(["0.02", "0.05", "0.01", "0.10"], [True, False, True, True], [1.2, 2.9, 3.0, 4.1], strict=True)
    rows = [attempt(f"t{i}/0", y, cost_usd=usd, seconds=s, steps=2, errors=0) for i, (usd, y, s) in enumerate(cases)]
    plant(view_client, "trajectories", rows)
    plant(
        view_client,
        "feedback",
        [
            *[signal(f"t{i}/0", "violation", 1.0) for i in range(3)],
            *[signal(f"t{i}/0", "policy_critical_actions", 10.0) for i in range(4)],
        ],
    )
    row = read_one(view_client, "clear")
    assert (row["cost_normalized_accuracy"], row["cost_per_success"]) == near((1666.666667, 0.06))
    assert (row["within_3_s"], row["policy_adherence"], row["accuracy"]) == near((0.75, 0.925, 0.75))
    assert (row["composite"], row["reason"]) == (None, "no task has 8 attempts")
    parts = read_one(view_client, "efficiency")
    assert (parts["tasks"], parts["tasks_with_outcome"], parts["successes"], parts["steps"]) == (4, 4, 3, 8)
    assert (parts["usd_of_outcomes"], parts["p50_s"], parts["within_3_s"]) == near((0.18, 2.95, 0.75))
    assert (parts["pass_hat_8"], parts["reason"]) == (None, "no task has 8 attempts")
    classic = read_one(view_client, "classic")
    assert (classic["usd_per_task"], classic["accuracy"], classic["error_rate"]) == near((0.045, 0.75, 0))
    assert (classic["first_token_p50_ms"], classic["reason"]) == (None, "no planted attack")


def test_tasks_without_an_outcome_or_a_cost(view_client: Client) -> None:
    plant(view_client, "trajectories", [attempt("t0/0", None, cost_usd="0.3"), attempt("t1/0", True, cost_usd="0.1")])
    parts, clear, classic = (read_one(view_client, view) for view in ("efficiency", "clear", "classic"))
    assert (parts["tasks"], parts["tasks_with_outcome"], clear["tasks"], classic["tasks"]) == (2, 1, 1, 2)
    assert (parts["usd_per_task"], parts["usd_of_outcomes"], clear["cost_per_success"]) == near((0.2, 0.1, 0.1))
    assert (clear["accuracy"], classic["accuracy"]) == (1, 1)
    plant(view_client, "trajectories", [attempt("t1/1", False)])
    parts, clear = (read_one(view_client, view) for view in ("efficiency", "clear"))
    assert (parts["usd_per_task"], parts["p95_usd"], parts["usd_of_outcomes"]) == (None, None, None)
    assert (parts["accuracy"], clear["reason"]) == (0.5, "attempts without a cost: fill gateway.prices")


def first_token(number: int, ms: float | None, **fields: Any) -> dict[str, Any]:
    """Return a step of version 3."""
    row = {
        "tenant": TENANT,
        "trajectory_id": "t/0",
        "step_index": number,
        "occurred_at": AT,
        "agent": "a",
        "model": "m",
    }
    return row | {"harness_version": "h", "split": "eval", "version_max": 3, "first_token_ms": ms} | fields


def within_5_percent(expected: Any) -> Any:
    """Compare with quantiles of bins whose limits are 10 % apart: a quantile is the middle of its bin."""
    return pytest.approx(expected, rel=0.05)


def test_quantiles_of_the_time_to_the_first_token(view_client: Client) -> None:
    plant(view_client, "trajectories", [attempt("t/0", True)])
    waits = [*(float(ms) for ms in range(1, 101)), None]
    plant(view_client, "steps", [first_token(number, ms) for number, ms in enumerate(waits)])
    names = ("first_token_p50_ms", "first_token_p95_ms", "first_token_p99_ms")
    expected = within_5_percent((50, 95, 99))
    assert tuple(read_one(view_client, "classic")[name] for name in names) == expected
    # Steps of another version and of an hour that begins before the range.
    plant(view_client, "steps", [first_token(n, 900.0, version_max=4) for n in range(200, 300)])
    plant(view_client, "steps", [first_token(n, 900.0, occurred_at=AT - timedelta(days=1)) for n in range(300, 400)])
    assert tuple(read_one(view_client, "classic")[name] for name in names) == expected
    # The same steps, governed by a later policy, which took a time away.
    again = [first_token(n, None if n else 7.0, governed_by=1) for n in range(100)]
    plant(view_client, "steps", again)
    assert tuple(read_one(view_client, "classic")[name] for name in names) == within_5_percent((7, 7, 7))


def test_clears_composite_compares_the_tenants_rows(view_client: Client) -> None:
    ends = {1: ("0.1", 2.0), 2: ("2.1", 10.0), 3: ("0.5", 4.0)}
    for version, (usd, seconds) in ends.items():
        fields = {"cost_usd": usd, "seconds": seconds, "version_max": version}
        rows = [row for task in range(5) for row in attempts(f"v{version}-{task}", 8, 8 if task < 4 else 0, **fields)]
        plant(view_client, "trajectories", rows)
        plant(
            view_client,
            "feedback",
            [
                *[signal(f"v{version}-0/{i}", "violation", 0.25) for i in range(3)],
                signal(f"v{version}-0/0", "policy_critical_actions", 40.0),
            ],
        )
    row = read_one(view_client, "clear", "policy_version = 3")
    assert (row["pass_hat_8"], row["passes_gate"], row["reason"]) == (0.8, True, "")
    assert row["composite"] == near((0.8 + 0.75 + 0.8 + 0.925 + 0.8) / 5)


def test_latency_by_outcome(view_client: Client) -> None:
    plant(view_client, "trajectories", [attempt(f"t{s}/0", s < 4, seconds=float(s)) for s in range(1, 6)])
    rows = {row["result"]: row for row in read(view_client, "latency_by_outcome")}
    assert (rows["success"]["p50_s"], rows["failure"]["p50_s"]) == (2, 4.5)
    assert (rows["success"]["usd"], rows["success"]["reason"]) == (None, "no attempt has a cost")
