"""A call of the Kafka client that does not return ends the process, soon if the process must stop."""

import threading
from types import SimpleNamespace

import pytest
from waiting import wait_until

from stepstream.jobs.runtime import transaction
from stepstream.jobs.runtime.transaction import _Watchdog


@pytest.mark.parametrize(("timeout_s", "stops"), [(0.0, False), (3_600.0, True)])
def test_a_call_that_does_not_return_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, stops: bool
) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(transaction, "os", SimpleNamespace(_exit=statuses.append))
    monkeypatch.setattr(transaction, "_WATCH_S", 0.01)
    monkeypatch.setattr(transaction, "_GRACE_S", 0.01)
    stop = threading.Event()
    with _Watchdog("call", timeout_s, stop.is_set):
        if stops:
            stop.set()
        wait_until(lambda: statuses, "the process ends")
    assert statuses[0] == 1
