"""Sessions: connections that live from one request to the next, one request at a time.

As in ClickHouse: a session keeps its settings, current database and temporary tables until it was not used for its
timeout; a second request at the same time is refused.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stepstream.services.store.engine import Connection
from stepstream.services.store.errors import SESSION_IS_LOCKED, SESSION_NOT_FOUND, StoreError
from stepstream.services.store.request import Session


@dataclass
class _Held:
    connection: Connection
    busy: bool
    expires: float


class Sessions:
    """All sessions of the store, by id; thread-safe."""

    def __init__(self, connect: Callable[[], Connection], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @contextmanager
    def use(self, session: Session) -> Iterator[Connection]:
        """The session's connection, for one request.

        Raises:
            StoreError: it is in use, or `session_check` was asked and there is none.
        """
        with self._lock:
            self._expire()
            held = self._held.get(session.id)
            if held is None:
                if session.must_exist:
                    raise StoreError(SESSION_NOT_FOUND, f"Session {session.id} not found")
                held = self._held[session.id] = _Held(self._connect(), busy=False, expires=0.0)
            if held.busy:
                raise StoreError(SESSION_IS_LOCKED, f"Session {session.id} is locked by a concurrent client")
            held.busy = True
        try:
            yield held.connection
        finally:
            with self._lock:
                held.busy = False
                held.expires = self._clock() + session.timeout_s

    def close(self) -> None:
        """Ends them all; none may be in use."""
        with self._lock:
            for held in self._held.values():
                held.connection.close()
            self._held.clear()

    def _expire(self) -> None:
        now = self._clock()
        for id, held in list(self._held.items()):
            if not held.busy and held.expires < now:
                held.connection.close()
                del self._held[id]
