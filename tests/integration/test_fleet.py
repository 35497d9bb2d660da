"""Run a fleet through the real gateway to a scripted worker, and compare its ledger with the log."""

import asyncio
import os
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_fixtures import codec
from log_reading import read_to_end
from sample_records import training_decision
from scripted_upstream import ScriptedUpstream, solve
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady
from stepstream.services.fleet.environment import load_environment
from stepstream.services.fleet.evaluate import evaluate
from stepstream.services.fleet.ledger import Attempt, read_ledger
from stepstream.topics.events import new_checkpoint, new_reward_specification
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

GROUP = 4
StartFleet = Callable[..., ServiceProcess]


@pytest.fixture
def start_fleet(gateway: ServiceProcess, tmp_path: Path) -> Iterator[StartFleet]:
    """Return a function that starts a fleet process with these settings, as `start_fleet(max_trajectories=8)`."""
    started: list[ServiceProcess] = []

    def start(**fields: Any) -> ServiceProcess:
        fleet = {"concurrency": 8, "group_size": GROUP, "max_ahead": -1, "ledger": tmp_path / "ledger.jsonl"}
        port = free_block(1)
        learner = {"groups_per_update": 1, "updates_per_checkpoint": 1}
        settings = with_settings(gateway.settings, fleet=fleet | fields, learner=learner, metrics={"port": port})
        ready = HttpReady(f"http://127.0.0.1:{port}/metrics")
        process = ServiceProcess("stepstream.services.fleet", settings, ready, tmp_path / "fleet.log")
        process.launch()
        started.append(process)
        return process

    yield start
    for process in started:
        if process.status is None:
            process.kill()


@pytest.fixture(autouse=True)
def policy(upstream: ScriptedUpstream) -> Iterator[None]:
    """Let the worker solve every task."""
    upstream.reply = solve
    upstream.requests.clear()
    yield
    upstream.release()
    upstream.reply, upstream.status = lambda request: "hello", 200


def ledger(process: ServiceProcess) -> list[Attempt]:
    path = process.settings.fleet.ledger
    assert path is not None
    return list(read_ledger(path))


def events_of(settings: Settings, topic: str, trajectories: set[str]) -> list[Any]:
    events = read_to_end(settings, codec(settings.schema_registry.url), topic)
    return [event.record for event in events if event.key in trajectories]


def wait_for_events(settings: Settings, attempts: list[Attempt]) -> tuple[list[Any], list[Any]]:
    """Wait for as many steps and feedback events as the ledger counts; return both."""
    names = {attempt.trajectory_id for attempt in attempts}
    found: list[list[Any]] = [[], []]

    def has_all() -> bool:
        found[:] = [events_of(settings, "steps", names), events_of(settings, "feedback", names)]
        return len(found[0]) >= sum(a.steps for a in attempts) and len(found[1]) >= sum(
            len(a.feedback) for a in attempts
        )

    wait_until(has_all)
    return found[0], found[1]


def test_the_log_holds_the_events_of_the_ledger(start_fleet: StartFleet, upstream: Any) -> None:
    fleet = start_fleet(max_trajectories=3 * GROUP)
    wait_until(lambda: fleet.status is not None)
    assert fleet.status == 0, fleet.log_text
    attempts = ledger(fleet)
    assert [(a.status, a.outcome, a.end, a.steps, a.unsure) for a in attempts] == [
        ("finished", 1.0, "terminated", 4, False)
    ] * (3 * GROUP)
    assert set(Counter(a.group_id for a in attempts).values()) == {GROUP}
    assert len({a.task_id for a in attempts}) == len({a.group_id for a in attempts}) == 3
    assert {(a.version_min, a.version_max) for a in attempts} == {(7, 7)}
    steps, feedback = wait_for_events(fleet.settings, attempts)
    assert Counter(s["trajectory_id"] for s in steps) == {a.trajectory_id: a.steps for a in attempts}
    assert {f["event_id"] for f in feedback} == {a.feedback[0] for a in attempts}
    assert {(f["name"], f["value"], f["end"], f["last_step_index"]) for f in feedback} == {
        ("outcome", 1.0, "terminated", 3)
    }
    attempts_by_id = {a.trajectory_id: a for a in attempts}
    for step in steps:
        attempt = attempts_by_id[step["trajectory_id"]]
        assert (step["task_id"], step["group_id"], step["split"]) == (attempt.task_id, attempt.group_id, "train")
        assert (step["agent"], step["environment"]) == ("lookup-agent", "lookup")
        assert step["fidelity"] == "token"
        assert (step["prompt_shared_tokens"] > 0) == (step["step_index"] > 0)


def test_an_agent_that_never_answers_is_truncated(start_fleet: StartFleet, upstream: ScriptedUpstream) -> None:
    upstream.reply = lambda request: "get(a)"
    fleet = start_fleet(max_trajectories=1)
    wait_until(lambda: fleet.status is not None)
    (attempt,) = ledger(fleet)
    assert (attempt.status, attempt.outcome, attempt.end, attempt.steps) == ("finished", 0.0, "truncated", 6)


def test_a_rejected_request_ends_the_attempt(start_fleet: StartFleet, upstream: ScriptedUpstream) -> None:
    upstream.status = 400
    fleet = start_fleet(max_trajectories=1)
    wait_until(lambda: fleet.status is not None)
    (attempt,) = ledger(fleet)
    assert (attempt.status, attempt.outcome, attempt.end, attempt.steps) == ("finished", 0.0, "truncated", 1)
    steps, _ = wait_for_events(fleet.settings, [attempt])
    assert steps[0]["error"] == "scripted_error"


def test_an_attempt_lost_to_a_worker_fault_is_repeated(start_fleet: StartFleet, upstream: Any) -> None:
    upstream.status = 500
    fleet = start_fleet(max_trajectories=1)
    wait_until(lambda: len(ledger(fleet)) >= 1)
    upstream.status = 200
    wait_until(lambda: fleet.status is not None)
    attempts = ledger(fleet)
    assert [a.status for a in attempts[:-1]] == ["lost"] * (len(attempts) - 1)
    assert (attempts[-1].status, attempts[-1].outcome) == ("finished", 1.0)
    assert {a.group_id for a in attempts} == {attempts[0].group_id}
    wait_for_events(fleet.settings, attempts)


def test_a_stopped_fleet_records_its_unfinished_attempts(start_fleet: StartFleet, upstream: ScriptedUpstream) -> None:
    upstream.reply = lambda request: "get(a)" if len(request["messages"]) < 5 else "get(b)"
    fleet = start_fleet(shutdown_s=0.2)
    wait_until(lambda: len([r for r in upstream.requests if len(r["messages"]) >= 5]) >= 8)
    upstream.hold()
    wait_until(lambda: upstream.held >= fleet.settings.fleet.concurrency)  # else all attempts may be at their end
    assert fleet.stop() == 0
    upstream.release()
    attempts = ledger(fleet)
    assert {a.status for a in attempts} <= {"finished", "abandoned"}
    assert any(a.status == "abandoned" for a in attempts)
    steps, _ = wait_for_events(fleet.settings, attempts)
    counted = Counter(s["trajectory_id"] for s in steps)
    for attempt in attempts:
        assert attempt.steps <= counted[attempt.trajectory_id] <= attempt.steps + attempt.unsure


async def test_held_out_tasks_are_attempted_once_each(
    gateway: ServiceProcess, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    settings = with_settings(gateway.settings, fleet={"ledger": tmp_path / "ledger.jsonl", "concurrency": 4})
    attempts = await evaluate(settings, 6, "before", temperature=0.0)
    assert [a.outcome for a in attempts] == [1.0] * 6
    assert len({a.task_id for a in attempts}) == 6
    assert {(a.split, a.group_id, a.task_id.split("/")[1]) for a in attempts} == {("eval", None, "eval")}
    assert upstream.requests[-1]["temperature"] == 0.0
    assert sorted(a.trajectory_id for a in read_ledger(tmp_path / "evaluation-before.jsonl")) == sorted(
        a.trajectory_id for a in attempts
    )
    assert [a.task_id for a in await evaluate(settings, 6, "after")] == [a.task_id for a in attempts]


async def test_an_evaluation_that_fails_cancels_its_other_attempts(
    gateway: ServiceProcess, upstream: ScriptedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, answer: str) -> float:
        raise RuntimeError("no score")

    settings = with_settings(gateway.settings, fleet={"ledger": tmp_path / "ledger.jsonl", "concurrency": 2})
    monkeypatch.setattr(load_environment(settings.fleet.environment), "answer", fail)
    with pytest.raises(RuntimeError, match="no score"):
        await evaluate(settings, 6, "failing")
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_unreachable_gateway_loses_the_attempt(tmp_path: Path, registry_settings: Settings) -> None:
    fleet = {"gateway_url": f"http://127.0.0.1:{free_block(1)}", "gateway_deadline_s": 0.3, "ledger": tmp_path / "l"}
    (attempt,) = await evaluate(with_settings(registry_settings, fleet=fleet), 1, "x")
    assert (attempt.status, attempt.steps, attempt.unsure, attempt.outcome) == ("lost", 0, False, None)
    assert "no gateway answers" in str(attempt.error)


def test_groups_wait_for_the_learner(start_fleet: StartFleet, upstream: ScriptedUpstream) -> None:
    first_steps = 0

    def every_other(request: dict[str, Any]) -> str:
        nonlocal first_steps
        first_steps += len(request["messages"]) == 1
        return "ans(0)" if len(request["messages"]) == 1 and first_steps % 2 else solve(request)

    upstream.reply = every_other
    model = f"m-{uuid.uuid4()}"
    fleet = start_fleet(model=model, max_ahead=1, concurrency=1)
    allowed = 2 * GROUP  # one group for the first version and, with max_ahead=1, one more
    wait_until(lambda: len(ledger(fleet)) == allowed)
    settings = fleet.settings
    producer = EventProducer(settings.kafka, codec(settings.schema_registry.url), "test")
    for version, parent in ((3, None), (4, 3)):
        event = new_checkpoint(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            model=model,
            version=version,
            parent_version=parent,
            uri="file:///x",
            weights_sha256="",
            files=[],
            code_version="0",
        )
        producer.send("checkpoints", f"{model}@{version}", event)
        producer.flush(TIMEOUT_S)
        assert len(ledger(fleet)) == allowed or version == 4
    wait_until(lambda: len(ledger(fleet)) > allowed)
    assert fleet.stop() == 0


SLOW = """
[[component]]
name = "outcome"
feedback = "outcome"
outcome = true
[[component]]
name = "slow"
builtin = "seconds"
weight = -0.01
"""


def test_equal_outcomes_wait_for_the_learner_if_the_reward_has_more_components(
    start_fleet: StartFleet, gateway: ServiceProcess
) -> None:
    agent, model = f"a-{uuid.uuid4()}", f"m-{uuid.uuid4()}"
    spec = new_reward_specification(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        name=agent,
        version=1,
        digest="",
        document=f'name = "{agent}"\nagents = ["{agent}"]' + SLOW,
    )
    settings = gateway.settings
    producer = EventProducer(settings.kafka, codec(settings.schema_registry.url), "test")
    producer.send("reward-specs", agent, spec)
    producer.flush(TIMEOUT_S)
    fleet = start_fleet(model=model, agent=agent, max_ahead=0, concurrency=1)
    wait_until(lambda: len(ledger(fleet)) >= GROUP)
    decided_at_us = now_us()
    first = ledger(fleet)[:GROUP]
    for reason in ("superseded", "no_variance"):
        for attempt in first:
            name = attempt.trajectory_id
            decision = training_decision(
                name, event_id=f"{name}/{reason}", group_id=attempt.group_id, model=model, outcome="dropped",
                reason=reason, update=None,
            )  # fmt: skip
            producer.send("training-decisions", name, decision)
    producer.flush(TIMEOUT_S)
    wait_until(lambda: len(ledger(fleet)) > GROUP)
    assert {attempt.outcome for attempt in first} == {1.0}
    assert ledger(fleet)[GROUP].started_at_us >= decided_at_us
    assert fleet.stop() == 0


def test_a_task_without_variance_is_skipped(
    start_fleet: StartFleet, gateway: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = str(Path(__file__).parents[1] / "support")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [support, os.environ.get("PYTHONPATH")])))
    model = f"m-{uuid.uuid4()}"
    fleet = start_fleet(environment="few_tasks:OneTask", curriculum_spacing=4, model=model, concurrency=1)
    metrics = f"http://127.0.0.1:{fleet.settings.metrics.port}/metrics"

    def passed_over() -> float:
        with urllib.request.urlopen(metrics) as page:
            lines = page.read().decode().splitlines()
        (sample,) = (line for line in lines if line.startswith("stepstream_fleet_tasks_passed_over_total "))
        return float(sample.split()[1])

    wait_until(lambda: len(ledger(fleet)) >= GROUP)
    first = ledger(fleet)[0]
    producer = EventProducer(gateway.settings.kafka, codec(gateway.settings.schema_registry.url), "test")
    decision = training_decision(
        first.trajectory_id, group_id=first.group_id, model=model, outcome="dropped", reason="no_variance", update=None
    )
    producer.send("training-decisions", first.trajectory_id, decision)
    producer.flush(TIMEOUT_S)
    wait_until(lambda: passed_over() == 1.0)
    assert fleet.stop() == 0
    assert {attempt.task_id for attempt in ledger(fleet)} == {first.task_id}


def test_the_error_names_an_unknown_environment(start_fleet: StartFleet) -> None:
    fleet = start_fleet(environment="nowhere:Nothing")
    wait_until(lambda: fleet.status is not None)
    assert fleet.status == 1
    assert "nowhere:Nothing" in fleet.log_text
