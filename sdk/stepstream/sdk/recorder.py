"""Where the SDK's events go: one recorder a process, made at the first use, in the background from then on."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

if TYPE_CHECKING:
    from stepstream.config import Settings

log = logging.getLogger(__name__)

P = ParamSpec("P")
_SWITCH, _OFF = "STEPSTREAM_SDK_ENABLED", ("0", "f", "false", "n", "no", "off")
MB = 1024 * 1024


class Sink(Protocol):
    """Takes events; never blocks in `send`."""

    def send(self, topic: str, key: str, record: Any) -> bool:
        """Queues an event; False if it is lost."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Waits until all is delivered; returns how many events still wait."""
        ...

    def close(self, timeout_s: float) -> object:
        """Delivers what it can in `timeout_s` seconds and stops."""
        ...


class MemorySink:
    """Keeps events in a list, for tests of agents: `configure(sink=MemorySink())`."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Any]] = []
        """Topic, key and record of each event."""

    def send(self, topic: str, key: str, record: Any) -> bool:
        """Keeps an event."""
        self.events.append((topic, key, record))
        return True

    def flush(self, timeout_s: float) -> int:
        """Nothing waits."""
        return 0

    def close(self, timeout_s: float) -> None:
        """Keeps the events."""

    def of(self, topic: str) -> list[Any]:
        """The records of a topic, in order."""
        return [record for name, _, record in self.events if name == topic]


class Recorder:
    """Takes events on their way; counts what became of them."""

    def __init__(self, settings: Settings, sink: Sink | None = None) -> None:
        """With `sink`, events go there instead of to Kafka."""
        from importlib.metadata import version

        self.settings = settings
        self.producer = f"sdk/{version('stepstream')}"
        """`producer` of every event."""
        self.counts = {"delivered": 0, "refused": 0, "lost": 0, "unspooled": 0}
        """Events by what became of them; see `topics.backlog.Watch`."""
        self.waiting = 0
        """Events that Kafka has not acknowledged, as of a moment ago."""
        self.inherited = False
        """Whether it is the parent's of a forked process, whose threads and connections are not here."""
        self._lock = threading.Lock()
        self._sink = sink if sink is not None else self._connect()

    def emit(self, topic: str, record: Any) -> None:
        """Queues one event of a trajectory; one that was begun before a fork goes to this process's own recorder."""
        if not self.inherited:
            self._sink.send(topic, record["trajectory_id"], record)
        elif (own := recorder()) is not None:
            own.emit(topic, record)

    def flush(self, timeout_s: float) -> int:
        """Waits until all is delivered; returns how many events still wait."""
        return self._sink.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Delivers what it can in `timeout_s` seconds and stops."""
        self._sink.close(timeout_s)

    def _connect(self) -> Sink:
        # Not needed by a program that only imports the SDK, or has it switched off.
        from stepstream.crypto.key_ring import codec_of
        from stepstream.delivery.spooled_producer import SpooledProducer
        from stepstream.delivery.types import BacklogLimits

        sdk = self.settings.sdk
        return SpooledProducer(
            self.settings.kafka,
            # A master key made here would be one that the installation does not know: without one, nothing is sealed.
            lambda keep_key: codec_of(self.settings, keep_key=keep_key, make_master=False),
            self.producer,
            _Counting(self),
            BacklogLimits(sdk.spool, sdk.spool_mb * MB, sdk.memory_mb * MB, drop_oldest=True),
        )

    def count(self, what: str, events: int) -> None:
        """Adds to `counts`."""
        with self._lock:
            self.counts[what] += events


class _Counting:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def delivered(self, events: int) -> None:
        self._recorder.count("delivered", events)

    def refused(self, events: int) -> None:
        self._recorder.count("refused", events)

    def lost(self, events: int) -> None:
        self._recorder.count("lost", events)

    def unspooled(self, events: int) -> None:
        self._recorder.count("unspooled", events)

    def backlog(self, events: int, spool_bytes: int) -> None:
        self._recorder.waiting = events


class _State:
    """The process's recorder. `known` is whether it has been decided: then `recorder` None means switched off."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known = False
        self.recorder: Recorder | None = None
        self.settings: Settings | None = None


_state = _State()
_of_the_parent: list[Recorder] = []


def configure(settings: Settings | None = None, *, enabled: bool | None = None, sink: Sink | None = None) -> None:
    """Replaces the process's recorder; what the one before it holds is delivered first, within `sdk.flush_s`.

    Args:
        settings: default: as `stepstream config` shows them.
        enabled: switches the SDK on or off, whatever the settings say.
        sink: takes the events instead of Kafka.
    """
    close()
    with _state.lock:
        _state.settings = settings
        _decide(enabled, sink)


def recorder() -> Recorder | None:
    """The process's recorder; None: the SDK is switched off."""
    if not _state.known:
        with _state.lock:
            if not _state.known:
                _decide(None, None)
    return _state.recorder


def flush(timeout_s: float | None = None) -> int:
    """Blocks until Kafka has everything, at most `timeout_s` seconds (default `sdk.flush_s`).

    Returns:
        How many events still wait.
    """
    active = _state.recorder
    if active is None:
        return 0
    return active.flush(active.settings.sdk.flush_s if timeout_s is None else timeout_s)


def close(timeout_s: float | None = None) -> None:
    """Flushes and stops; the next use starts again. Called when the process ends."""
    with _state.lock:
        active, _state.recorder, _state.known = _state.recorder, None, False
    if active is not None:
        active.close(active.settings.sdk.flush_s if timeout_s is None else timeout_s)


def quiet(method: Callable[P, None]) -> Callable[P, None]:
    """A method whose failure is logged and never reaches the agent."""

    @wraps(method)
    def safe(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            not_recorded(error)

    return safe


def not_recorded(error: Exception) -> None:
    """Says so and counts it as refused."""
    log.error("not recorded: %s", error, exc_info=error)
    if _state.recorder is not None:
        _state.recorder.count("refused", 1)


def _decide(enabled: bool | None, sink: Sink | None) -> None:
    try:
        if enabled is None and _state.settings is None and os.environ.get(_SWITCH, "").lower() in _OFF:
            enabled = False  # without a look at the settings, which costs more than all else here
        if enabled is not False:
            _begin(enabled, sink)
    except Exception:
        log.exception("nothing is recorded")
    _state.known = True


def _begin(enabled: bool | None, sink: Sink | None) -> None:
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

        Finalize(None, close, exitpriority=0)  # a child that was forked ends without what `atexit` knows


def _after_fork() -> None:
    # Threads and connections of the parent are not there in the child: it begins anew. The parent's recorder is
    # neither used nor freed here.
    global _state
    if _state.recorder is not None:
        _state.recorder.inherited = True
        _of_the_parent.append(_state.recorder)
    settings, known = _state.settings, _state.known and _state.recorder is None
    _state = _State()
    _state.settings, _state.known = settings, known


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
