"""Keeps the logs of the libraries below Faust readable."""

import logging
import time

_EVERY_S = 10.0


class _Calm(logging.Filter):
    """Passes at most one record every ten seconds: a client repeats ten times a second that its broker is away."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _EVERY_S
        return True


def quiet_libraries() -> None:
    """Leaves out what is logged once a batch or request, and thins out repeated complaints."""
    for name in ("faust", "mode", "aiokafka", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    calm = _Calm()
    for name in ("aiokafka", "aiokafka.conn", "aiokafka.consumer.fetcher", "aiokafka.consumer.group_coordinator"):
        logging.getLogger(name).addFilter(calm)
