"""Keep sessions: connections that persist between requests, for one request at a time.

As in ClickHouse, a session keeps its settings, current database and temporary tables until its timeout passes without a
request. A concurrent second request fails.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stepstream.services.store.engine import Connection
from stepstream.services.store.errors import SESSION_IS_LOCKED, SESSION_NOT_FOUND, StoreError
from stepstream.services.store.request import Session

MAX_SESSIONS = 1_000
"""Open sessions of one account: each holds a connection of the engine, and callers choose their ids."""
USER_SESSION_LIMIT_EXCEEDED = 700


@dataclass
class _OpenSession:
    connection: Connection
    busy: bool
    expires: float


class Sessions:
    """All sessions of the store, by id; thread-safe."""

    def __init__(self, connect: Callable[[bool], Connection], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._sessions: dict[tuple[str, bool], _OpenSession] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    @contextmanager
    def use(self, session: Session, *, reads_only: bool = False) -> Iterator[Connection]:
        """Yield the session's connection for one request.

        Each account has sessions of its own; `reads_only` tells which.

        Raises:
            StoreError: the session is in use; or it does not exist, and the request set `session_check` or its account
                has `MAX_SESSIONS`.
        """
        with self._lock:
            self._expire()
            key = session.id, reads_only
            open_session = self._sessions.get(key)
            if open_session is None:
                if session.must_exist:
                    raise StoreError(SESSION_NOT_FOUND, f"Session {session.id} not found")
                if sum(of_reader == reads_only for _, of_reader in self._sessions) >= MAX_SESSIONS:
                    raise StoreError(
                        USER_SESSION_LIMIT_EXCEEDED,
                        f"This account has {MAX_SESSIONS} open sessions: use one of them, wait for the session_timeout "
                        "of an unused one, or send the request without session_id",
                    )
                open_session = self._sessions[key] = _OpenSession(self._connect(reads_only), busy=False, expires=0.0)
            if open_session.busy:
                raise StoreError(SESSION_IS_LOCKED, f"Session {session.id} is locked by a concurrent client")
            open_session.busy = True
        try:
            yield open_session.connection
        finally:
            with self._lock:
                open_session.busy = False
                open_session.expires = self._clock() + session.timeout_s

    def close(self) -> None:
        """Close all sessions; none may be in use."""
        with self._lock:
            for open_session in self._sessions.values():
                open_session.connection.close()
            self._sessions.clear()

    def _expire(self) -> None:
        now = self._clock()
        for id, open_session in list(self._sessions.items()):
            if not open_session.busy and open_session.expires < now:
                open_session.connection.close()
                del self._sessions[id]
