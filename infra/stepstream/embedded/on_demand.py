"""The embedded log for one command: used where it runs already, started for the while where it does not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepstream.config import Settings
from stepstream.embedded.addresses import wire
from stepstream.embedded.ready import KafkaReady
from stepstream.embedded.stack import Stack


@contextmanager
def log_at_hand(settings: Settings, say: Callable[[str], None]) -> Iterator[Settings]:
    """Yields settings under which broker and registry can be reached.

    A broker that runs elsewhere, or an embedded one that runs already, is used as it is.

    Raises:
        StackError: the embedded ones do not come up.
    """
    wired = wire(settings)
    if "broker" in wired.stack.external or KafkaReady(wired.kafka)():
        yield wired
        return
    say("no broker runs: starting the embedded one to read the log")
    with Stack(wired, ["broker", "registry"]) as stack:
        yield stack.settings
