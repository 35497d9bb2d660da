"""The first signal ends a command; those that follow do not disturb the stopping."""

import signal

import pytest

from stepstream.cli.interrupt import Interrupted, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_raises_and_later_ones_are_ignored(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:  # while it stops, people press Ctrl-C again
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            stopped.append(True)

    stopped: list[bool] = []
    with pytest.raises(Interrupted, match=number.name), interruptible():
        work()
    assert stopped
    assert signal.getsignal(number) == before


def test_no_handler_of_faults_takes_it_for_one() -> None:
    assert not issubclass(Interrupted, Exception)
