"""Ending on Ctrl-C, SIGTERM and SIGHUP alike: the first one raises, the rest are ignored while things stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """Someone asked this command to end. Not an Exception, so that no handler of faults takes it for one."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it, the first signal raises `Interrupted` in the main thread; later ones do nothing."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
