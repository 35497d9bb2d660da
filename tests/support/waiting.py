"""Wait for conditions, with a time limit that only a fault reaches."""

import time
from collections.abc import Callable

TIMEOUT_S = 300.0
"""Longest wait of a test, in seconds: far above what a slow machine needs, so only a fault reaches it."""

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.02, 1.0


def wait_until(
    condition: Callable[[], object], what: str | Callable[[], str] = "", timeout_s: float = TIMEOUT_S
) -> None:
    """Poll `condition` until it is true; the pauses grow, since most conditions load the machine they wait for.

    Args:
        condition: Returns a truthy value once the wait is over.
        what: The expected state for the failure message, or a function that describes the current one.
        timeout_s: Longest wait in seconds.

    Raises:
        AssertionError: `condition` was false for `timeout_s`.
    """
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < timeout_s, f"not true after {timeout_s:g} s: {what() if callable(what) else what or condition}"
        time.sleep(min(max(_MIN_PAUSE_S, waited / 20), _MAX_PAUSE_S))


def wait_for_value(read: Callable[[], object], expected: object) -> None:
    """Poll `read` until it returns `expected`."""
    value: object = None

    def is_expected() -> bool:
        nonlocal value
        value = read()
        return value == expected

    wait_until(is_expected, lambda: f"value is {value}, expected {expected}")
