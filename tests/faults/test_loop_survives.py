"""Kill processes of a running loop: nothing is lost, counted twice or trained on twice, and the rest goes on."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from loop_fixtures import loop_of
from waiting import wait_until

from stepstream.config import Settings
from stepstream.demo.accounting import SentTrajectory, reconcile
from stepstream.demo.labels import LabelReader
from stepstream.demo.run_stats import RunStats
from stepstream.embedded.errors import StackError
from stepstream.embedded.stack import Event, Stack
from stepstream.jobs.clickhouse.connection import connect
from stepstream.learner.lineage import read_versions
from stepstream.services.fleet.ledger import Attempt, ledger_path, read_ledger
from stepstream.topics.codec import Codec
from stepstream.topics.ids import now_us

ROUNDS = (("govern", "label", "measure"), ("store-writer", "learner", "worker-0"), ("registry", "store"), ("broker",))
"""Processes that are killed at the same time."""
PROGRESS = 24
CRASHING = ("fleet", "console")

pytestmark = [pytest.mark.faults, pytest.mark.repeats]


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """Events that the stack reported."""
    return []


@pytest.fixture(scope="module")
def stack(
    base_model: Path,
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Event],
) -> Iterator[Stack]:
    """A whole loop as `stepstream up` runs it, without agents and console at first."""
    settings = with_topics_and_tables(loop_of(base_model, base_settings, tmp_path_factory.mktemp("survives")))
    with Stack(settings, on_event=events.append, deferred=CRASHING, tolerant=True) as stack:
        yield stack


def test_a_kill_of_any_process_loses_and_duplicates_nothing(stack: Stack) -> None:
    settings = stack.settings
    with (
        closing(LabelReader(settings)) as labels,
        closing(RunStats(settings, now_us(), 0)) as figures,
        closing(Codec(settings)) as codec,
    ):
        attempts = work_and_kill(stack)
        sent = [SentTrajectory(a.trajectory_id, a.steps, bool(a.feedback), a.unsure) for a in attempts]
        wait_until(lambda: not missing(figures, sent), lambda: f"not in the tables: {missing(figures, sent)}")
        account = reconcile(sent, figures.stored_steps([entry.trajectory_id for entry in sent]), labels.read())
        assert (account.lost, account.duplicated) == (0, 0), account
        wait_until(
            lambda: cohort_counts(settings) == ledger_counts(attempts), "statistics agree with the agents' ledger"
        )
        trained = trained_by_versions(settings, codec)
        wait_until(lambda: trained_by_decisions(settings) == trained, "decisions agree with the versions' inputs")


def test_a_fleet_and_a_console_that_keep_crashing_stop_nothing_else(stack: Stack, events: list[Event]) -> None:
    """Last, since it leaves both paused."""
    others = {process.name: stack.pid(process.name) for process in stack.processes if process.name not in CRASHING}
    assert {"gateway", "learner"} <= {name for name, pid in others.items() if pid}
    for name in CRASHING:
        stack.start_process(name)

    def are_given_up() -> bool:
        for name in CRASHING:
            with suppress(StackError, ProcessLookupError):  # it is down
                stack.kill(name)
        stack.poll()
        return {event.name for event in events if event.state == "failed"} == set(CRASHING)

    wait_until(are_given_up, "both crashed more often than the stack restarts them at once")
    assert {process.name: stack.pid(process.name) for process in stack.processes if process.name in others} == others
    assert all(process.ready() for process in stack.processes if process.name in others)


def work_and_kill(stack: Stack) -> list[Attempt]:
    """Kill the victims of each round while agents work; return the attempts of the agents' ledger."""
    settings = stack.settings
    stack.start_process("fleet")

    def finished() -> int:
        return sum(1 for attempt in read_ledger(ledger_path(settings)) if attempt.feedback)

    def wait_for_work(what: str) -> None:
        before = finished()
        wait_until(lambda: finished() >= before + PROGRESS, what)

    for victims in ROUNDS:
        wait_for_work(f"work before {victims} are killed")
        pids = {victim: stack.kill(victim) for victim in victims}
        for victim, pid in pids.items():
            stack.wait_ready(victim, after_pid=pid)
    wait_for_work("work after the last kill")
    stack.stop_process("fleet")

    attempts = [attempt for attempt in read_ledger(ledger_path(settings)) if attempt.steps]
    assert not [attempt.error for attempt in attempts if attempt.status == "lost"], "an agent saw a failure"
    return attempts


def missing(figures: RunStats, sent: list[SentTrajectory]) -> list[str]:
    """Describe what the tables lack of the trajectories that were sent."""
    stored = figures.stored_steps([entry.trajectory_id for entry in sent])
    unlabelled = figures.unlabelled([entry.trajectory_id for entry in sent if entry.ended])
    lacking = [
        f"{entry.trajectory_id}: {rows} of {entry.steps} steps"
        for entry in sent
        if (rows := stored.get(entry.trajectory_id, (0, 0))[0]) < entry.steps
    ]
    return lacking + [f"{trajectory_id}: no label" for trajectory_id in sorted(unlabelled)]


def ledger_counts(attempts: list[Attempt]) -> tuple[int, int]:
    """Return trajectories with an outcome, and successes, of the ledger; an interrupted attempt has no outcome."""
    known = [attempt.outcome for attempt in attempts if attempt.outcome is not None]
    return len(known), sum(outcome == 1.0 for outcome in known)


def cohort_counts(settings: Settings) -> tuple[int, int]:
    """Return the same counts from the cohorts of `measure`."""
    client = connect(settings, database=settings.clickhouse.database, reads_only=True)
    try:
        rows = client.query(
            "SELECT sum(successes + failures), sum(successes) FROM trajectory_stats FINAL"
            " WHERE scope = 'cohort' AND tool = ''"
        ).result_rows
        return int(rows[0][0]), int(rows[0][1])
    finally:
        client.close()


def trained_by_decisions(settings: Settings) -> set[tuple[int, int]]:
    """Return the log positions of the trained labels from the learner's decisions."""
    client = connect(settings, database=settings.clickhouse.database, reads_only=True)
    try:
        rows = client.query(
            "SELECT partition, offset FROM training_decisions FINAL WHERE outcome = 'trained'"
        ).result_rows
        assert len(rows) == len(set(rows)), "a decision appears twice"
        return {(int(partition), int(offset)) for partition, offset in rows}
    finally:
        client.close()


def trained_by_versions(settings: Settings, codec: Codec) -> set[tuple[int, int]]:
    """Return the trained log positions of the versions; none appears twice."""
    versions = read_versions(settings.kafka, codec).by_model[settings.learner.model]
    trained = Counter(
        position
        for checkpoint in versions.values()
        for update in checkpoint["inputs"]
        for position in zip(update["partitions"], update["offsets"], strict=True)
    )
    assert trained, "the learner published nothing"
    assert max(trained.values()) == 1
    return set(trained)
