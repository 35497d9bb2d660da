"""Test that sessions serve one request at a time and end after their timeout."""

import pytest

from stepstream.services.store import sessions as store_sessions
from stepstream.services.store.errors import SESSION_IS_LOCKED, SESSION_NOT_FOUND, StoreError
from stepstream.services.store.request import Session
from stepstream.services.store.sessions import USER_SESSION_LIMIT_EXCEEDED, Sessions


class Connection:
    closed = False

    def close(self) -> None:
        self.closed = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(lambda reads_only: Connection(), clock)  # type: ignore[arg-type, return-value]


def session(id: str = "a", timeout_s: float = 60.0, must_exist: bool = False) -> Session:
    return Session(id, timeout_s, must_exist)


def test_a_session_has_one_connection(sessions: Sessions) -> None:
    with sessions.use(session()) as first:
        pass
    with sessions.use(session(must_exist=True)) as again, sessions.use(session("b")) as other:
        assert again is first
        assert other is not first


def fail_inside(sessions: Sessions) -> None:
    with sessions.use(session()):
        raise ZeroDivisionError


def test_a_session_is_locked_while_in_use(sessions: Sessions) -> None:
    with sessions.use(session()), pytest.raises(StoreError) as refused, sessions.use(session()):
        pass
    assert refused.value.code == SESSION_IS_LOCKED
    with sessions.use(session()):
        pass


def test_a_session_is_free_after_an_error(sessions: Sessions) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_inside(sessions)
    with sessions.use(session()):
        pass


def test_an_unused_session_ends_after_its_timeout(sessions: Sessions, clock: Clock) -> None:
    with sessions.use(session(timeout_s=5)) as connection:
        clock.now = 100.0
    clock.now = 105.0
    with sessions.use(session(timeout_s=5)) as again:
        assert again is connection
    clock.now = 110.1
    with pytest.raises(StoreError) as refused, sessions.use(session(must_exist=True)):
        pass
    assert refused.value.code == SESSION_NOT_FOUND
    assert connection.closed  # type: ignore[attr-defined]
    assert len(sessions) == 0


def test_an_account_has_a_limited_number_of_sessions(
    sessions: Sessions, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_sessions, "MAX_SESSIONS", 2)
    for id in ("a", "b", "a"):
        with sessions.use(session(id, timeout_s=5), reads_only=True):
            pass
    with pytest.raises(StoreError, match="2 open sessions") as refused, sessions.use(session("c"), reads_only=True):
        pass
    assert refused.value.code == USER_SESSION_LIMIT_EXCEEDED
    with sessions.use(session("c")):  # the other account's are counted separately
        pass
    clock.now = 5.1
    with sessions.use(session("c"), reads_only=True):
        pass


def test_closing_ends_all_sessions(sessions: Sessions) -> None:
    with sessions.use(session()) as connection:
        pass
    sessions.close()
    assert connection.closed  # type: ignore[attr-defined]
