"""The first signal ends a command; later ones do not disturb its stop."""

import signal

import pytest

from stepstream.cli.interrupt import Interrupted, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_raises_and_later_ones_are_ignored(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:  # signals while the command stops
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            stopped.append(True)

    stopped: list[bool] = []
    with pytest.raises(Interrupted, match=number.name), interruptible():
        work()
    assert stopped
    assert signal.getsignal(number) == before


def test_an_interrupt_is_no_exception_that_error_handlers_catch() -> None:
    assert not issubclass(Interrupted, Exception)
