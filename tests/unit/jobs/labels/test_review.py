"""A change of consent or an erasure concerns the trajectories of one person or tenant, and only these are read."""

from typing import Any

import pytest
from fold_harness import MemoryState
from hypothesis import given
from hypothesis import strategies as st
from label_runs import NOW_MS, Run, successful_trajectory

from stepstream.jobs.governance.consent import consent_key, parse_consent_key
from stepstream.jobs.governance.decision_log import DecisionLog
from stepstream.jobs.governance.trajectory_policy import DecisionChange
from stepstream.jobs.labels import review


class CountingState(MemoryState):
    """Counts the entries that scans read."""

    scanned = 0

    def scan(self, prefix: bytes, begin: bytes = b"") -> Any:
        for entry in super().scan(prefix, begin):
            self.scanned += 1
            yield entry


def many(count: int) -> tuple[Run, CountingState]:
    """Return a partition with a trajectory of `ann` and many of other persons, all reviewed."""
    state = CountingState()
    run = Run(state=state)
    run.labels(*successful_trajectory("hers", user="ann"))
    for number in range(count):
        run.labels(*successful_trajectory(f"t{number}", user=f"user{number}"))
    run.tick_labels()
    run.rules.lookups = state.scanned = 0
    return run, state


def test_a_change_of_consent_reads_only_the_trajectories_of_its_person() -> None:
    run, state = many(50)
    run.rules.change(ann="analyse")
    [label] = run.tick_labels()
    assert (label["trajectory_id"], label["consent"]) == ("hers", "analyse")
    assert run.rules.lookups == 1
    assert state.scanned <= 2


def test_an_erasure_reads_the_index_and_only_the_trajectories_of_its_person() -> None:
    run, _ = many(50)
    run.rules.erase("ann")
    [label] = run.tick_labels()
    assert (label["trajectory_id"], label["flags"]) == ("hers", ["erased"])
    assert run.rules.lookups == 1
    assert not any(b"ann" in value for value in run.state.content.values())


def test_a_decision_about_a_tenant_reads_its_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "_SCANNED_PER_TICK", 3)
    run, state = many(10)
    run.rules.changes += 1
    run.rules.log.append(DecisionChange("default"))
    for tick in range(1, 5):
        state.scanned = 0
        run.tick(NOW_MS)
        assert (run.rules.lookups, state.scanned <= 4) == (min(3 * tick, 11), True)
    assert not run.fold.due(NOW_MS)
    run.rules.changes += 1
    run.rules.log.append(DecisionChange("another"))
    run.tick(NOW_MS)
    assert run.rules.lookups == 11


def test_changes_while_nobody_held_the_partition_are_found() -> None:
    run, _ = many(5)
    run.rules.change(ann="none")
    run.restart()
    [label] = run.tick_labels()
    assert (label["trajectory_id"], label["consent"]) == ("hers", "none")
    # And later ones by their person again.
    run.rules.lookups = 0
    run.rules.change(user3="none")
    assert [label["trajectory_id"] for label in run.tick_labels()] == ["t3"]
    assert run.rules.lookups == 1


ROWS = st.tuples(st.sampled_from(["ann", "bob", "c/d", "*"]), st.sampled_from([None, "1", "2", "3"]))


@given(st.lists(ROWS), st.lists(ROWS), st.integers(0, 10))
def test_a_decision_log_follows_its_table(before: list[Any], after: list[Any], cut: int) -> None:
    """In any order of loading and noting, the fingerprint is that of the rows, and each change is listed."""
    table: dict[str, Any] = {}

    def apply(rows: list[Any], log: DecisionLog | None) -> None:
        for user, event_id in rows:
            key = consent_key("default", user, None)
            table.pop(key, None)
            if event_id is not None:
                table[key] = {"event_id": event_id}
            if log is not None:
                log.note("consents", key, table.get(key))

    log, overlap = DecisionLog(), before[cut:]
    apply(before[:cut], None)
    apply(overlap, log)  # noted, and loaded too
    log.load({"consents": table})
    log.read()
    cursor, unknown = log.since(None)
    assert unknown is None
    known = dict(table)
    apply(after, log)
    log.read()
    fresh = DecisionLog()
    fresh.load({"consents": table})
    assert log.fingerprint == fresh.fingerprint
    _, changes = log.since(cursor)
    changed = {key for key in known.keys() | table.keys() if known.get(key) != table.get(key)}
    assert changed <= {consent_key("default", change.user, None) for change in changes or []}


def test_a_log_forgets_old_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepstream.jobs.governance.decision_log._KEPT", 2)
    log = DecisionLog()
    cursor, _ = log.since(None)
    for number in range(3):
        log.note("erasures", f"s{number}", {"event_id": str(number), "tenant": "a"})
        log.read()
    assert log.since(cursor) == (3, None)
    assert log.since(1) == (3, [DecisionChange("a", subject="s1"), DecisionChange("a", subject="s2")])


@given(st.text(min_size=1), st.none() | st.text(), st.none() | st.text())
def test_a_consent_key_is_parsed(tenant: str, user: str | None, agent: str | None) -> None:
    assert parse_consent_key(consent_key(tenant, user, agent)) == (tenant, user, agent)
