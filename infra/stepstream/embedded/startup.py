"""Starting the parts of a stack: each as soon as what it needs is ready, all within one deadline."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from stepstream.config import Settings
from stepstream.embedded.addresses import VARIABLES
from stepstream.embedded.errors import StackError
from stepstream.embedded.processes import Action, Part
from stepstream.embedded.watch import Watch

POLL_S = 0.1


@dataclass(frozen=True)
class Event:
    """Something that a person may want to see: `name` is a process, an action, or `install`."""

    name: str
    state: Literal["starting", "ready", "restarted", "ended", "stopping", "stopped"]
    detail: str = ""


OnEvent = Callable[[Event], None]


class Startup:
    """One start of the parts; `run` blocks until all are ready."""

    def __init__(
        self, settings: Settings, parts: Sequence[Part], held: Collection[str], watch: Watch, on_event: OnEvent
    ) -> None:
        """`held` are processes to leave down: actions on them are left out, processes after them do not wait."""
        self._settings = settings
        self._parts = [part for part in parts if part.name not in held and not _acts_on(part, held)]
        self._watch = watch
        self._on_event = on_event
        self._began: dict[str, float] = {}
        self._running: dict[str, _Run] = {}
        self._ready: set[str] = set()

    def run(self) -> None:
        """Starts everything.

        Raises:
            StackError: a process was given up, an action failed, or the deadline passed.
        """
        deadline = time.monotonic() + self._settings.stack.start_deadline_s
        names = {part.name for part in self._parts}
        while self._ready != names:
            for part in self._parts:
                if part.name not in self._began and self._ready.issuperset(names.intersection(part.after)):
                    self._begin(part)
            for part in self._parts:
                if part.name in self._began and part.name not in self._ready and self._is_ready(part):
                    self._ready.add(part.name)
                    self._on_event(Event(part.name, "ready", f"{time.monotonic() - self._began[part.name]:.1f} s"))
            self._watch.look()
            if time.monotonic() > deadline:
                raise StackError(self._late())
            time.sleep(POLL_S)

    def _begin(self, part: Part) -> None:
        self._began[part.name] = time.monotonic()
        self._on_event(Event(part.name, "starting"))
        if isinstance(part, Action):
            self._running[part.name] = _Run(part, self._settings)
        elif not part.external:
            self._watch.supervisord.call("startProcess", part.name, False)

    def _is_ready(self, part: Part) -> bool:
        return self._running[part.name].done() if isinstance(part, Action) else part.ready()

    def _late(self) -> str:
        lines = [f"not ready after {self._settings.stack.start_deadline_s:g} s (STEPSTREAM_STACK_START_DEADLINE_S):"]
        for part in self._parts:
            if part.name not in self._began or part.name in self._ready:
                continue
            if isinstance(part, Action):
                lines.append(f"{part.name} goes on and on")
            elif part.external:
                lines.append(
                    f"{part.name} runs elsewhere and does not answer at {part.ready.address}: "
                    f"start it there, or set {VARIABLES[part.name]}"
                )
            else:
                where = f"{part.name} does not answer at {part.ready.address}"
                lines.append(f"{where}; {self._watch.last_words(part.name)}")
        return "\n".join(lines)


def _acts_on(part: Part, names: Collection[str]) -> bool:
    return isinstance(part, Action) and any(name in names for name in part.after)


class _Run:
    """An action on a thread of its own, so that the processes that do not need it come up meanwhile."""

    def __init__(self, action: Action, settings: Settings) -> None:
        self._action = action
        self._error: BaseException | None = None
        # A daemon: an interrupted start does not wait for it.
        self._thread = threading.Thread(target=self._work, args=(settings,), name=action.name, daemon=True)
        self._thread.start()

    def _work(self, settings: Settings) -> None:
        try:
            self._action.run(settings)
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise StackError(f"{self._action.name}: {self._error or repr(self._error)}") from self._error
        return True
