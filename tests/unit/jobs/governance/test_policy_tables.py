"""Jobs wait, and log the reason, while a table may lack a decision about their events."""

from typing import Any

import pytest
from sealing import MASTER, FakeTable

from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.policy_tables import RetryingPolicies, RetryingTrajectoryPolicies, TablePolicies
from stepstream.jobs.runtime import followed_tables
from stepstream.jobs.runtime.retry import Cancelled

FAULT = "offset 7 cannot be read"


@pytest.fixture
def tables() -> list[FakeTable]:
    """The tables of policies, consents and erasures."""
    return [FakeTable(), FakeTable(), FakeTable()]


@pytest.fixture
def waiting(tables: list[FakeTable], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The policies of `govern` and of `label`; `cancelled` ends their waiting."""
    given = iter(tables)
    monkeypatch.setattr(followed_tables, "Table", lambda *_, **__: next(given))
    cancelled: list[bool] = []
    active = ActivePolicies(bytes(32), tables[0], tables[1])
    govern = RetryingPolicies(active, tables, lambda: bool(cancelled))  # type: ignore[arg-type]
    label = RetryingTrajectoryPolicies(TablePolicies(MASTER), lambda: bool(cancelled))
    return {
        "govern": lambda: govern.of("t").version,
        "label": lambda: label.of("t", "agent", [], 0).consent,
        "cancelled": cancelled,
    }


@pytest.mark.parametrize(("job", "decided"), [("govern", 0), ("label", "train")])
@pytest.mark.parametrize("number", range(3))
def test_a_job_decides_nothing_while_a_table_has_a_fault(
    job: str,
    decided: object,
    number: int,
    tables: list[FakeTable],
    waiting: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tables[number].fault = FAULT
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            tables[number].fault = None

    monkeypatch.setattr("stepstream.jobs.runtime.retry.time.sleep", wait)
    assert waiting[job]() == decided
    assert len(waits) == 3
    assert FAULT in caplog.text


@pytest.mark.parametrize("job", ["govern", "label"])
def test_a_job_that_stops_does_not_wait_for_a_table(job: str, tables: list[FakeTable], waiting: dict[str, Any]) -> None:
    tables[1].fault = FAULT
    waiting["cancelled"].append(True)
    with pytest.raises(Cancelled):
        waiting[job]()
