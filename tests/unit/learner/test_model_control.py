"""Check that a learner trains on no decision of before a restart: it waits until the newest ones are read."""

from collections.abc import Iterator

import pytest

from stepstream.config import Settings
from stepstream.core.process import Stop
from stepstream.learner import model_control
from stepstream.learner.model_control import ModelControl


class NoTable:
    """A table of a topic that nobody reads."""

    fault = "the newest record cannot be read"

    def __init__(self, *_: object) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Return the results of the waits for the tables, which a test fills in."""
    found: list[bool] = []
    monkeypatch.setattr(model_control, "Table", NoTable)
    monkeypatch.setattr(model_control, "wait_all_current", lambda *_: found.pop(0))
    yield found
    assert found == []


def test_a_learner_waits_until_the_decisions_are_read(answers: list[bool], caplog: pytest.LogCaptureFixture) -> None:
    """Else a learner that starts in a rollback would train from the version that was taken back."""
    answers += [False, False, True]
    with ModelControl(Settings()) as control:
        assert control.wait_read(Stop())
    assert "waiting for the decisions about 'demo': the newest record cannot be read" in caplog.text


def test_a_stop_ends_the_wait(answers: list[bool]) -> None:
    answers += [False]
    stop = Stop()
    stop.set()
    with ModelControl(Settings()) as control:
        assert not control.wait_read(stop)
