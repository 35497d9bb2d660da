"""Test `stepstream explain` on a real store: every state of a trajectory."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result
from clickhouse_connect.driver.client import Client
from sample_records import SAMPLES, T0_US, checkpoint, feedback, step, training_decision, trajectory

from stepstream.cli.explain import explain
from stepstream.config import Settings, environment_of
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.export import episodes, matching_pages
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.services.console.trajectories.facts import facts_of
from stepstream.topics.events import new_labeled_step

Ask = Callable[..., Result]


@pytest.fixture(scope="module")
def settings(own_database: Callable[[str], Settings]) -> Settings:
    made = own_database("explain")
    migrate(made)
    return made


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with connection.connect(settings, database="explain") as client:
        for table in TABLES:
            client.command(f"TRUNCATE TABLE {table}")
        yield client


@pytest.fixture
def ask(settings: Settings) -> Ask:
    def run_explain(*arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(explain, arguments, env=environment_of(settings) | environment)

    return run_explain


def put(client: Client, topic: str, *records: Any) -> None:
    for record in records:
        for table, row in rows(topic, record):
            client.insert(table, [row], column_names=TABLES[table].columns)


def ask_store(client: Client, sql: str, **parameters: str) -> list[dict[str, Any]]:
    return list(client.query(sql, parameters=parameters).named_results())


def label(name: str = "t", **fields: Any) -> Any:
    defaults: dict[str, Any] = {"group_id": "g", "success": True, "trainable": True, "reward": 1.0}
    return trajectory(name, **defaults | fields)


def answer(ask: Ask, name: str = "t") -> dict[str, Any]:
    result = ask(name, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.output))


def test_an_unused_id_is_unknown(client: Client, ask: Ask) -> None:
    result = ask("nobody")
    assert result.exit_code == 1
    assert result.output.startswith("nobody: unknown\n")
    assert json.loads(ask("nobody", "--json").output)["state"] == "unknown"


def test_a_trajectory_of_another_tenant_is_found_by_its_tenant(client: Client, ask: Ask) -> None:
    put(client, "governed-steps", step(tenant="acme"))
    put(client, "labeled-trajectories", label(), label(tenant="acme", trainable=False, flags=["held:by_hand"]))
    assert answer(ask)["state"] == "waiting"
    assert json.loads(ask("t", "--tenant", "acme", "--json").output)["state"] == "not_trainable"
    assert "tenant nobody has no such trajectory, but acme, default" in ask("t", "--tenant", "nobody").output


def test_a_withheld_trajectory_has_the_reason_consent(client: Client, ask: Ask) -> None:
    put(client, "governance-audit", SAMPLES["governance-audit"] | {"action": "withheld", "found": {}})
    assert (answer(ask)["state"], answer(ask)["reason"]) == ("withheld", "consent")


def test_an_open_trajectory_names_what_closes_it(client: Client, ask: Ask) -> None:
    put(client, "governed-steps", step(), step(index=1, event_id="t-1"))
    put(client, "governed-feedback", feedback(), feedback("r", retracts="f"))
    put(client, "governed-feedback", feedback("s", value=None, demonstration="so", step_index=1))
    explanation = answer(ask)
    assert explanation["state"] == "open"
    assert "7200 s without a step" in explanation["would_change_it"]
    assert explanation["steps"]["count"] == 2
    assert [(row["retracted"], row["demonstrates"]) for row in explanation["feedback"]] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert "feedback     outcome 1.0 from environment, retracted" in ask("t").output
    assert "feedback     outcome from environment, demonstrates the response of step 1" in ask("t").output


def test_an_untrainable_label_names_its_reason_and_remedy(client: Client, ask: Ask) -> None:
    put(client, "governed-steps", step())
    put(client, "labeled-trajectories", label(trainable=False, flags=["held:by_hand"]))
    explanation = answer(ask)
    assert (explanation["state"], explanation["reason"]) == ("not_trainable", "not_trainable")
    assert "held:by_hand" in explanation["why"]
    assert "quarantine release" in explanation["would_change_it"]


def test_an_attempt_in_an_incomplete_group_waits_for_the_others(client: Client, ask: Ask) -> None:
    put(client, "labeled-trajectories", label(), label("u"))
    put(client, "governed-steps", step("t", group_id="g"), step("v", group_id="g"))
    put(client, "labeled-trajectories", label("x", tenant="another"))
    put(client, "governed-steps", step("y", group_id="g", tenant="another"))
    explanation = answer(ask)
    assert explanation["state"] == "waiting"
    assert "2 labelled attempts of 8, and 1 open" in explanation["why"]
    put(client, "labeled-trajectories", *(label(f"w{n}") for n in range(6)))
    assert "waits for an update" in answer(ask)["why"]


def test_a_trained_trajectory_names_its_update(client: Client, ask: Ask) -> None:
    put(client, "labeled-trajectories", label())
    put(client, "checkpoints", checkpoint(9))
    put(client, "training-decisions", *[training_decision()] * 2)
    put(client, "training-decisions", training_decision(event_id="x", model="other", outcome="dropped",
        reason="other_model", update=None, occurred_at_us=T0_US + 5))  # fmt: skip
    explanation = answer(ask)
    assert (explanation["state"], explanation["would_change_it"]) == ("trained", "")
    assert "demo@4 in update 7, 1 versions stale" in explanation["why"]
    assert len(explanation["decisions"]) == 2
    assert "staleness    8 versions now" in ask("t").output


def test_a_revision_after_training_names_both_revisions(client: Client, ask: Ask) -> None:
    put(client, "training-decisions", training_decision())
    put(client, "labeled-trajectories", label(), label(revision=2))
    explanation = answer(ask)
    assert (explanation["state"], explanation["reason"]) == ("trained", "trained_on_older_revision")
    assert "at revision 1; the newest label is revision 2" in explanation["why"]


def test_of_two_labels_with_one_revision_explain_and_exports_read_the_greater_event_id(client: Client) -> None:
    """As every other reader: unit/topics/test_label_precedence.py."""
    rewards = {f"{digit}0000000-0000-5000-8000-000000000000": float(place) for place, digit in enumerate("0f8")}
    put(client, "governed-steps", step("t", 0, event_id="s"))
    for order in (list(rewards), list(rewards)[::-1]):
        for event_id in order:
            paid = new_labeled_step(step_index=0, event_id="s", reward=rewards[event_id], return_to_go=0.0)
            put(client, "labeled-trajectories", label(event_id=event_id, reward=rewards[event_id], steps=[paid]))
        newest = facts_of(partial(ask_store, client), "default", "t").label
        assert newest is not None
        assert newest["reward"] == 1.0
        [page] = matching_pages(client, "", "analyse")
        assert [episode.rewards for episode in episodes(client, page, "analyse")] == [{0: 1.0}]
        client.command("TRUNCATE TABLE trajectories")


def test_a_dropped_trajectory_names_its_reason_and_remedy(client: Client, ask: Ask) -> None:
    put(client, "labeled-trajectories", label())
    put(client, "training-decisions", training_decision(outcome="dropped", reason="stale", staleness=5, update=None))
    output = ask("t").output
    assert "t: dropped\n" in output
    assert "dropped it at version 3, 5 versions stale, because its oldest token was sampled more versions" in output
    assert "would change a larger `learner.staleness_bound`" in output


def test_an_unreachable_store_raises(ask: Ask) -> None:
    result = ask("t", STEPSTREAM_CLICKHOUSE_URL="http://127.0.0.1:9")
    assert isinstance(result.exception, connection.StoreUnavailableError)
