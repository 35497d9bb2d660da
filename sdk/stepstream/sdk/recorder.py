"""Send the SDK's events through one recorder a process, which starts at the first use and sends in the background."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from stepstream.config import Settings

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
_ENABLED_VARIABLE, _OFF = "STEPSTREAM_SDK_ENABLED", ("0", "f", "false", "n", "no", "off")
MB = 1024 * 1024
KNOWN_TRAJECTORIES = 1000
"""Number of trajectories that a process can reopen by their id."""


class Sink(Protocol):
    """A destination of events; `send` never blocks."""

    def send(self, topic: str, key: str, record: Any) -> bool:
        """Queue an event; False: it is dropped."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Block until all events are delivered, at most `timeout_s` seconds; return how many are not."""
        ...

    def close(self, timeout_s: float) -> object:
        """Flush for at most `timeout_s` seconds and stop."""
        ...


class MemorySink:
    """A list of events, for tests of agents: `configure(sink=MemorySink())`."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Any]] = []
        """Topic, key and record of each event."""

    def send(self, topic: str, key: str, record: Any) -> bool:
        """Append an event."""
        self.events.append((topic, key, record))
        return True

    def flush(self, timeout_s: float) -> int:
        """Return 0: a list delivers at once."""
        return 0

    def close(self, timeout_s: float) -> None:
        """Do nothing: the events stay readable."""

    def of(self, topic: str) -> list[Any]:
        """Return the records of a topic, in order."""
        return [record for name, _, record in self.events if name == topic]


class KnownTrajectories:
    """The trajectories of one recorder by tenant and id; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def find(self, key: tuple[str, str], make: Callable[[], T]) -> T:
        """Return the trajectory, made by `make` if it is unknown."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = make()
            self._known.move_to_end(key)
            if len(self._known) > KNOWN_TRAJECTORIES:
                self._known.popitem(last=False)
            return cast(T, found)


class Recorder:
    """Sends events and counts them by outcome."""

    def __init__(self, settings: Settings, sink: Sink | None = None) -> None:
        """Send events to `sink`, or without one to Kafka."""
        from importlib.metadata import version

        self.settings = settings
        self.producer = f"sdk/{version('stepstream')}"
        """`producer` of every event."""
        self.counts = {"delivered": 0, "refused": 0, "lost": 0, "unspooled": 0}
        """Number of events by outcome; `refused` includes invalid calls of the SDK."""
        self.unacknowledged = 0
        """Events that Kafka has not acknowledged, updated several times a second."""
        self.known_trajectories = KnownTrajectories()
        self.is_inherited = False
        """True in a forked child for the parent's recorder, whose threads and connections the child lacks."""
        self._lock = threading.Lock()
        self._sink = sink if sink is not None else self._connect()

    def emit(self, topic: str, record: Any) -> None:
        """Queue one event of a trajectory. After a fork, the child's own recorder takes it."""
        if not self.is_inherited:
            self._sink.send(topic, record["trajectory_id"], record)
        elif (active := recorder()) is not None:
            active.emit(topic, record)

    def flush(self, timeout_s: float) -> int:
        """Block until all events are delivered, at most `timeout_s` seconds; return how many are not."""
        return self._sink.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush for at most `timeout_s` seconds and stop."""
        self._sink.close(timeout_s)

    def _connect(self) -> Sink:
        # Imported here: a program that only imports the SDK, or switches it off, does not need Kafka's client.
        from stepstream.crypto.key_ring import sealing_codec
        from stepstream.delivery.spooled_producer import SpooledProducer
        from stepstream.delivery.types import BacklogLimits

        sdk = self.settings.sdk
        return SpooledProducer(
            self.settings.kafka,
            # Never create a master key here: other processes would not have it. Without one, nothing is sealed.
            lambda keep_key: sealing_codec(self.settings, keep_key=keep_key, make_master=False),
            self.producer,
            _OutcomeCounter(self),
            BacklogLimits(sdk.spool, sdk.spool_mb * MB, sdk.memory_mb * MB, drop_oldest=True),
        )

    def count(self, outcome: str, events: int) -> None:
        """Add to `counts`."""
        with self._lock:
            self.counts[outcome] += events


class _OutcomeCounter:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_delivered(self, events: int) -> None:
        self._recorder.count("delivered", events)

    def on_rejected(self, events: int) -> None:
        self._recorder.count("refused", events)

    def on_dropped(self, events: int) -> None:
        self._recorder.count("lost", events)

    def on_unspooled(self, events: int) -> None:
        self._recorder.count("unspooled", events)

    def on_backlog(self, events: int, spool_bytes: int) -> None:
        self._recorder.unacknowledged = events


class _State:
    """The process's recorder. Once `is_decided`, None means that the SDK is switched off."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_decided = False
        self.recorder: Recorder | None = None
        self.settings: Settings | None = None


_state = _State()
_inherited_recorders: list[Recorder] = []


def configure(settings: Settings | None = None, *, enabled: bool | None = None, sink: Sink | None = None) -> None:
    """Replace the process's recorder, after closing the old one within `sdk.flush_s`.

    Args:
        settings: default: those that `stepstream config` shows.
        enabled: switch the SDK on or off; default: `sdk.enabled`.
        sink: destination of the events; default: Kafka.
    """
    close()
    with _state.lock:
        _state.settings = settings
        _decide(enabled, sink)


def recorder() -> Recorder | None:
    """Return the process's recorder; None: the SDK is switched off."""
    if not _state.is_decided:
        with _state.lock:
            if not _state.is_decided:
                _decide(None, None)
    return _state.recorder


def flush(timeout_s: float | None = None) -> int:
    """Block until Kafka has all events, at most `timeout_s` seconds (default `sdk.flush_s`).

    Returns:
        Number of unacknowledged events.
    """
    active = _state.recorder
    if active is None:
        return 0
    return active.flush(active.settings.sdk.flush_s if timeout_s is None else timeout_s)


def close(timeout_s: float | None = None) -> None:
    """Flush and stop; the next use starts a new recorder. Runs at process exit, too."""
    with _state.lock:
        active, _state.recorder, _state.is_decided = _state.recorder, None, False
    if active is not None:
        active.close(active.settings.sdk.flush_s if timeout_s is None else timeout_s)


def never_raise(method: Callable[P, None]) -> Callable[P, None]:
    """Make a method log its exceptions instead of raising them into the agent's code."""

    @wraps(method)
    def safe(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            log_failure(error)

    return safe


def log_failure(error: Exception) -> None:
    """Log an exception that prevented recording, and count it as refused."""
    log.error("not recorded: %s", error, exc_info=error)
    if _state.recorder is not None:
        _state.recorder.count("refused", 1)


def _decide(enabled: bool | None, sink: Sink | None) -> None:
    try:
        if enabled is None and _state.settings is None and os.environ.get(_ENABLED_VARIABLE, "").lower() in _OFF:
            enabled = False  # skip loading the settings, which costs more than the rest of the SDK
        if enabled is not False:
            _start(enabled, sink)
    except Exception:
        log.exception("nothing is recorded: the recorder cannot start")
    _state.is_decided = True


def _start(enabled: bool | None, sink: Sink | None) -> None:
    from stepstream.config import SettingsError, load

    try:
        settings = _state.settings or load()
    except SettingsError as error:
        log.error("nothing is recorded: settings: %s", error)
        return
    if not (settings.sdk.enabled if enabled is None else enabled):
        return
    _state.recorder = Recorder(settings, sink)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close, exitpriority=0)  # forked children of `multiprocessing` do not run `atexit`


def _after_fork() -> None:
    # The child lacks the parent's threads and connections, so it starts a new recorder. The list keeps the parent's
    # recorder, which the child must neither use nor free.
    global _state
    if _state.recorder is not None:
        _state.recorder.is_inherited = True
        _inherited_recorders.append(_state.recorder)
    settings, is_off = _state.settings, _state.is_decided and _state.recorder is None
    _state = _State()
    _state.settings, _state.is_decided = settings, is_off


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
