"""Test the views of reliability, horizons, production and learning on the vectors of shared/METRICS.md."""

from datetime import timedelta
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from view_rows import AT, attempt, attempts, hour, plant, read, read_one, signal


def near(expected: Any) -> Any:
    return pytest.approx(expected, abs=1e-6)


def test_success_of_a_step_and_over_a_horizon(view_client: Client) -> None:
    plant(view_client, "trajectories", [attempt(f"t{i}/0", i < 8, steps=10) for i in range(10)])
    row = read_one(view_client, "long_horizon", "horizon = 50")
    assert (row["step_success_gm"], row["projected_success"]) == near((0.977933, 0.32768))


def test_survival_by_length(view_client: Client) -> None:
    lengths = [(2, False), (3, True), (3, False), (4, True), (5, True), (5, False)]
    plant(view_client, "trajectories", [attempt(f"s{i}/0", y, steps=n) for i, (n, y) in enumerate(lengths)])
    row = read_one(view_client, "long_horizon", "horizon = 10")
    assert (row["hazard"], row["survival"]) == near((0.136364, 0.230839))
    assert (row["is_extrapolated"], row["reason"]) == (True, "survival is extrapolated")
    tenfold = [attempt(f"s{i}/0", y, steps=10 * n, version_max=4) for i, (n, y) in enumerate(lengths)]
    plant(view_client, "trajectories", tenfold)
    rows = read(view_client, "long_horizon", "policy_version = 4 AND horizon <= 50 ORDER BY horizon")
    assert [row["survival"] for row in rows] == near([1, 0.833333, 0.333333])


def test_calibration(view_client: Client) -> None:
    stated = [0.95, 0.9, 0.85, 0.7, 0.65, 0.6, 0.35, 0.3, 0.1, 1.0]
    outcomes = [True, True, False, True, False, True, False, True, False, True]
    plant(view_client, "trajectories", [attempt(f"c{i}/0", y) for i, y in enumerate(outcomes)])
    plant(view_client, "feedback", [signal(f"c{i}/0", "confidence", f) for i, f in enumerate(stated)])
    row = read_one(view_client, "calibration")
    assert (row["ece"], row["brier"], row["brier_skill"], row["auroc"]) == near((0.2, 0.203, 0.154167, 0.75))


def test_calibration_of_one_class_has_no_auroc(view_client: Client) -> None:
    plant(view_client, "trajectories", [attempt("c/0", True)])
    plant(view_client, "feedback", [signal("c/0", "confidence", 0.5)])
    row = read_one(view_client, "calibration")
    assert (row["auroc"], row["brier_skill"], row["reason"]) == (
        None,
        None,
        "skill and AUROC need successes and failures",
    )


def test_consistency(view_client: Client) -> None:
    paths = [["read", "edit", "test"], ["read", "read", "edit", "test"], ["edit", "test"]]
    calls = [
        {"call.step": [0] * len(p), "call.tool": p, "call.error": [""] * len(p), "call.ms": [1.0] * len(p)}
        for p in paths
    ]
    plant(view_client, "trajectories", [attempt(f"p/{i}", True, **call) for i, call in enumerate(calls)])
    row = read_one(view_client, "consistency")
    assert (row["c_traj_d"], row["c_traj_s"], row["c_out"]) == near((0.825709, 0.638889, 1))


def test_consistency_of_outcome_and_resources(view_client: Client) -> None:
    rows = attempts("o", 8, 6)
    plant(view_client, "trajectories", rows)
    row = read_one(view_client, "consistency")
    assert (row["c_out"], row["c_out_unbiased"], row["c_res"]) == (0.25, near(0.142857), None)
    costs = [attempt(f"r/{i}", False, cost_usd=usd, version_max=4) for i, usd in enumerate([900, 1100, 1000, 1400])]
    plant(view_client, "trajectories", costs)
    assert read_one(view_client, "consistency", "policy_version = 4")["c_res"] == near(0.821695)


def test_robustness_and_safety(view_client: Client) -> None:
    plant(view_client, "trajectories", [*attempts("plain", 10, 7), *attempts("faulty", 50, 31)])
    plant(view_client, "feedback", [signal(f"faulty/{i}", "perturbation", category="fault") for i in range(50)])
    severities = [0.0] * 7 + [0.25, 0.5, 1.0]
    plant(view_client, "feedback", [signal(f"plain/{i}", "violation", s) for i, s in enumerate(severities)])
    row = read_one(view_client, "robustness")
    assert row["r_fault"] == near(0.885714)
    assert (row["r_prompt"], row["reason"]) == (None, "a kind of perturbation has no run")
    row = read_one(view_client, "safety")
    assert (row["s_comp"], row["s_harm"], row["safety"]) == near((0.7, 0.416667, 0.825))
    assert (row["policy_adherence"], row["reason"]) == (None, "nobody counted policy-critical actions")
    row = read_one(view_client, "reliability")
    assert (row["reliability"], row["safety"]) == (None, near(0.825))


def test_reliability_has_the_figures_of_the_views_of_its_parts(view_client: Client) -> None:
    kinds = {"plain": "", "faulty": "fault", "moved": "environment", "reworded": "prompt", "other": "tone"}
    calls = {"call.step": [0], "call.tool": ["read"], "call.error": [""], "call.ms": [1.0]}
    for number, (task, kind) in enumerate(kinds.items()):
        rows = [attempt(f"{task}/{i}", i % 3 != number % 3, cost_usd=1 + i, seconds=1 + i, **calls) for i in range(6)]
        plant(view_client, "trajectories", [*rows, attempt(f"{task}/6", None), attempt(f"{task}-once/0", True)])
        signals = [signal(f"{task}/{i}", "confidence", i / 6) for i in range(7)]
        signals += [signal(f"{task}/{i}", "violation", 0.25 * number) for i in range(4, 7)]
        if kind:
            signals += [signal(f"{task}/{i}", "perturbation", category=kind) for i in range(6)]
        of_another = [each | {"tenant": "else", "value": 1.0} for each in signals]
        plant(view_client, "feedback", [*signals, *of_another])
    row = read_one(view_client, "reliability")
    parts = {name: read_one(view_client, name) for name in ("consistency", "robustness", "calibration", "safety")}
    for name in ("consistency", "robustness", "safety"):
        assert row[name] == near(parts[name][name]), name
    assert None not in (row["consistency"], row["robustness"], row["safety"])
    assert row["p_cal"] == near(1 - parts["calibration"]["ece"])
    assert row["p_auroc"] == near(parts["calibration"]["auroc"])
    assert row["predictability"] == near(1 - parts["calibration"]["brier"])
    assert row["reliability"] == near((row["consistency"] + row["robustness"] + row["predictability"]) / 3)
    assert row["reason"] == ""


def test_a_plain_rate_of_zero_leaves_robustness_undefined(view_client: Client) -> None:
    plant(view_client, "trajectories", [*attempts("plain", 2, 0), *attempts("faulty", 2, 1)])
    plant(view_client, "feedback", [signal(f"faulty/{i}", "perturbation", category="fault") for i in range(2)])
    row = read_one(view_client, "robustness")
    assert (row["r_fault"], row["reason"]) == (None, "no plain run succeeded")


def test_keep_rate_leaves_young_changes_out(view_client: Client) -> None:
    plant(view_client, "trajectories", [attempt(f"k{i}/0", True) for i in range(4)])
    sizes = [(10.0, 9.0), (4.0, 4.0), (6.0, 0.0)]
    plant(
        view_client,
        "feedback",
        [
            *[signal(f"k{i}/0", "proposed", size) for i, (size, _) in enumerate([*sizes, (5.0, 0.0)])],
            *[signal(f"k{i}/0", "kept", kept, hours=25) for i, (_, kept) in enumerate(sizes)],
            signal("k3/0", "kept", 5.0, hours=2),
        ],
    )
    row = read_one(view_client, "keep_rate", "age_hours = 24")
    assert (row["keep_rate"], row["changes"], row["left_out"]) == (0.65, 3, 1)
    assert read_one(view_client, "keep_rate", "age_hours = 168")["keep_rate"] is None


def test_production_signals_are_null_until_somebody_sends_them(view_client: Client) -> None:
    plant(view_client, "trajectories", [attempt(f"p{i}/0", True) for i in range(4)])
    assert read_one(view_client, "production_signals")["revert_rate"] is None
    taken_back = signal("p1/0", "reverted", 1.0)
    plant(view_client, "feedback", [signal("p0/0", "reverted", 1.0), taken_back])
    plant(view_client, "feedback", [{**signal("p1/0", "reverted", 1.0, hours=1), "retracts": taken_back["event_id"]}])
    row = read_one(view_client, "production_signals")
    assert (row["revert_rate"], row["escalation_rate"], row["reason"]) == (0.25, 0, "")


def test_failure_clusters(view_client: Client) -> None:
    failed = {"call.step": [0, 1], "call.tool": ["get", "put"], "call.error": ["timeout", ""], "call.ms": [1.0, 1.0]}
    plant(view_client, "trajectories", [attempt(f"f{i}/0", False, **failed) for i in range(3)])
    plant(view_client, "trajectories", [attempt("g/0", None, end="truncated"), attempt("h/0", True)])
    first, second = read(view_client, "failure_clusters", "1 ORDER BY failures DESC")
    assert (first["failed_tool"], first["error_class"], first["failures"]) == ("get", "timeout", 3)
    assert first["share_of_failures"] == 0.75
    assert (second["ended"], second["reason"]) == ("truncated", "no tool call failed")


def test_a_cluster_is_one_row_wherever_its_call_failed(view_client: Client) -> None:
    for place in range(3):
        errors = ["timeout" if i == place else "" for i in range(3)]
        calls = {"call.step": [0] * 3, "call.tool": ["get"] * 3, "call.error": errors, "call.ms": [1.0] * 3}
        plant(view_client, "trajectories", [attempt(f"f/{place}", False, steps=place + 1, **calls)])
    row = read_one(view_client, "failure_clusters")
    assert (row["failures"], row["share_of_failures"], row["tasks"], row["steps"]) == (3, 1, 1, 2)
    assert (row["newest_trajectory_id"], row["newest_at"]) == ("f/2", AT.replace(tzinfo=None))


def test_the_newest_of_a_cluster_is_the_later_one_then_the_greater_id(view_client: Client) -> None:
    late = AT + timedelta(milliseconds=7)
    rows = [("z/0", AT), ("b/0", late), ("a/0", late), ("y/0", AT)]
    plant(view_client, "trajectories", [attempt(name, False, opened_at=at) for name, at in rows])
    row = read_one(view_client, "failure_clusters")
    assert (row["newest_trajectory_id"], row["newest_at"]) == ("b/0", late.replace(tzinfo=None))
    assert (row["failures"], row["tasks"]) == (4, 4)


def test_learnability_and_variance_of_groups(view_client: Client) -> None:
    plant(
        view_client,
        "trajectories",
        [
            *attempts("family/a", 4, 2, group_id="a"),
            *attempts("family/b", 4, 4, group_id="b"),
            *attempts("family/c", 1, 1, group_id="c"),
        ],
    )
    row = read_one(view_client, "learnability")
    assert (row["task_family"], row["tasks"], row["tasks_left_out"], row["groups"]) == ("family", 2, 1, 2)
    assert (row["learnability"], row["without_variance"]) == (near(1 / 6), 0.5)


def test_groups_without_variance_are_a_mean_over_tasks(view_client: Client) -> None:
    def of(task: str, group: str, outcomes: list[bool | None], apart: timedelta = timedelta(0)) -> list[dict[str, Any]]:
        names = [f"{task}/{group}{n}" for n in range(len(outcomes))]
        return [
            attempt(name, success, group_id=group, pending=["checked"], opened_at=AT + n * apart)
            for n, (name, success) in enumerate(zip(names, outcomes, strict=True))
        ]

    # Of the first task, two groups of three are alike, one of them over two hours. Those without a group are in none.
    first = [*of("f/a", "1", [True, True], timedelta(hours=1)), *of("f/a", "2", [True, False])]
    first += [*of("f/a", "3", [False] * 3), *of("f/a", "", [True, True])]
    second = [*of("f/b", "4", [True, False]), *of("f/b", "5", [True])]
    unjudged = of("f/c", "6", [True, None])
    plant(view_client, "trajectories", [*first, *second, *unjudged])
    row = read_one(view_client, "learnability")
    assert (row["tasks"], row["tasks_left_out"], row["groups"]) == (2, 1, 4)
    assert row["without_variance"] == near((2 / 3 + 0) / 2)


def test_lift_of_a_skill(view_client: Client) -> None:
    plant(view_client, "trajectories", [*attempts("on", 100, 61), *attempts("off", 100, 45)])
    plant(
        view_client,
        "feedback",
        [signal(f"{arm}/{i}", "assigned", float(arm == "on"), "memory") for arm in ("on", "off") for i in range(100)],
    )
    row = read_one(view_client, "skill_lift")
    assert (row["skill"], row["lift"]) == ("memory", near(0.16))
    assert (row["lift_low"], row["lift_high"]) == near((0.021743, 0.289917))


def test_coin_flip(view_client: Client) -> None:
    scores = {("0", "0"): "1011", ("0", "1"): "1010", ("1", "0"): "1111", ("1", "1"): "0010"}
    plant(
        view_client,
        "trajectories",
        [
            attempt(f"q{q}/{a}{b}", y == "1", harness_version=f"planner={a};solver={b}")
            for (a, b), answers in scores.items()
            for q, y in enumerate(answers)
        ],
    )
    row = read_one(view_client, "coin_flip")
    assert (row["module_a"], row["prompts_a"], row["questions"]) == ("planner", 2, 4)
    assert (row["df_interaction"], row["df_residual"], row["f"]) == (1, 9, near(1.8))
    shares = [row[f"share_{name}"] for name in ("questions", "a", "b", "interaction")]
    assert shares == near([0.333333, 0, 0.266667, 0.066667])


def version(number: int, parent: int | None, seconds: float = 0) -> dict[str, Any]:
    at = AT + timedelta(seconds=seconds)
    return {"event_id": str(number), "occurred_at": at, "model": "m", "version": number, "parent_version": parent}


def test_lineage_and_lift_over_the_parent(view_client: Client) -> None:
    plant(view_client, "checkpoints", [version(3, None), version(4, 3)])
    plant(
        view_client,
        "trajectory_hours",
        [
            hour(trajectories=100, outcomes=100, successes=45),
            hour(policy_version=4, trajectories=100, outcomes=100, successes=61),
        ],
    )
    rows = read(view_client, "lineage", "1 ORDER BY version")
    assert [(row["version"], row["parent_version"]) for row in rows] == [(3, None), (4, 3)]
    root, child = read(view_client, "lift_over_parent", "1 ORDER BY policy_version")
    assert (root["lift"], root["reason"]) == (None, "a root, or its checkpoint is unknown")
    assert (child["lift"], child["lift_low"], child["lift_high"]) == near((0.16, 0.021743, 0.289917))


def statuses(*rows: tuple[str, int, int], model: str = "m") -> list[dict[str, Any]]:
    """Return statuses of workers that serve a version at so many seconds."""
    return [
        {
            "event_id": f"{worker}/{at}",
            "occurred_at": AT + timedelta(seconds=at),
            "worker_id": worker,
            "model": model,
            "version": number,
            "state": "serving",
        }
        for worker, number, at in rows
    ]


def test_deployment_lag(view_client: Client) -> None:
    plant(view_client, "checkpoints", [version(3, None), version(4, 3, seconds=100)])
    plant(view_client, "worker_status", statuses(("w0", 3, 1), ("w1", 3, 3), ("w0", 4, 102), ("w1", 3, 103)))
    first, second = read(view_client, "deployment_lag", "1 ORDER BY version")
    assert (first["first_served_s"], first["all_served_s"], first["reason"]) == (1, 3, "")
    assert (second["first_served_s"], second["all_served_s"]) == (2, None)
    assert second["reason"] == "1 of 2 workers do not serve it"


def test_the_deployment_lag_leaves_out_a_worker_that_fell_silent(view_client: Client) -> None:
    plant(view_client, "checkpoints", [version(4, 3, seconds=100)])
    # `gone` is seen once after the checkpoint; `w1` falls silent too, but has served the version.
    plant(view_client, "worker_status", statuses(("gone", 3, 101), ("w0", 4, 102), ("w1", 4, 104), ("w0", 4, 400)))
    (row,) = read(view_client, "deployment_lag")
    assert (row["workers"], row["all_served_s"], row["reason"]) == (3, None, "1 of 3 workers do not serve it")
    plant(view_client, "worker_status", statuses(("other", 1, 401), model="another"))
    (row,) = read(view_client, "deployment_lag")
    assert (row["workers"], row["serving"], row["first_served_s"], row["all_served_s"]) == (2, 2, 2, 4)
    assert row["reason"] == ""


def test_the_deployment_lag_takes_the_broker_s_clock(view_client: Client) -> None:
    plant(view_client, "checkpoints", [version(4, 3, seconds=100)])
    # The clock of the worker is an hour behind.
    (behind,) = statuses(("w0", 4, 102 - 3600))
    plant(view_client, "worker_status", [behind | {"written_at": AT + timedelta(seconds=102)}])
    row = read_one(view_client, "deployment_lag")
    assert (row["workers"], row["serving"], row["all_served_s"]) == (1, 1, 2)
