"""How tests wait: for a condition, with a deadline that only a fault ever meets."""

import time
from collections.abc import Callable

PATIENCE_S = 300.0
"""How long a test waits for what must come, however slow the machine is; only a fault takes so long."""

_OFTEN_S, _SELDOM_S = 0.02, 1.0


def until(condition: Callable[[], object], what: str | Callable[[], str] = "", patience_s: float = PATIENCE_S) -> None:
    """Waits until something is so; fails with `what` was waited for, or lacked.

    It asks less often the longer it has waited: most questions cost the machine something, which is then missing where
    the answer is made.
    """
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < patience_s, f"not so within {patience_s:g} s: {what() if callable(what) else what or condition}"
        time.sleep(min(max(_OFTEN_S, waited / 20), _SELDOM_S))


def comes_to(ask: Callable[[], object], expected: object) -> None:
    """Waits until an answer is as expected."""
    seen: object = None

    def same() -> bool:
        nonlocal seen
        seen = ask()
        return seen == expected

    until(same, lambda: f"still {seen}, not {expected}")
