"""Start the parts of a stack, each as soon as its prerequisites are ready, all within one deadline."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from stepstream.config import Settings
from stepstream.embedded.addresses import VARIABLES
from stepstream.embedded.errors import StackError
from stepstream.embedded.monitor import ProcessMonitor
from stepstream.embedded.processes import Action, Part

POLL_S = 0.1


@dataclass(frozen=True)
class Event:
    """A change in the stack that people may want to see."""

    name: str
    """A process, an action, or `install`."""
    state: Literal["starting", "ready", "restarted", "failed", "ended", "stopping", "stopped"]
    detail: str = ""


OnEvent = Callable[[Event], None]


class Startup:
    """One start of the parts."""

    def __init__(
        self,
        settings: Settings,
        parts: Sequence[Part],
        deferred: Collection[str],
        monitor: ProcessMonitor,
        on_event: OnEvent,
    ) -> None:
        """Leave out the `deferred` processes and the actions that need them; no other part waits for these."""
        self._settings = settings
        self._parts = [part for part in parts if part.name not in deferred and not _acts_on(part, deferred)]
        self._monitor = monitor
        self._on_event = on_event
        self._started_at: dict[str, float] = {}
        self._running: dict[str, _BackgroundAction] = {}
        self._ready: set[str] = set()

    def run(self) -> None:
        """Start the parts and block until each is ready, or has failed and is not essential.

        Raises:
            StackError: an essential process or an action failed, or was not ready at the deadline.
        """
        deadline = time.monotonic() + self._settings.stack.start_deadline_s
        names = {part.name for part in self._parts}
        while self._ready != names:
            for part in self._parts:
                if part.name not in self._started_at and self._ready.issuperset(names.intersection(part.after)):
                    self._start(part)
            for part in self._parts:
                if part.name in self._started_at and part.name not in self._ready and self._is_ready(part):
                    self._ready.add(part.name)
                    self._on_event(Event(part.name, "ready", f"{time.monotonic() - self._started_at[part.name]:.1f} s"))
            # `Stack.poll` reports and restarts those that failed.
            self._ready |= {state.name for state in self._monitor.check().values() if state.failed}
            if time.monotonic() > deadline:
                self._give_up()
            time.sleep(POLL_S)

    def _start(self, part: Part) -> None:
        self._started_at[part.name] = time.monotonic()
        self._on_event(Event(part.name, "starting"))
        if isinstance(part, Action):
            self._running[part.name] = _BackgroundAction(part, self._settings)
        elif not part.external:
            self._monitor.supervisord.call("startProcess", part.name, False)

    def _is_ready(self, part: Part) -> bool:
        return self._running[part.name].done() if isinstance(part, Action) else part.ready()

    def _give_up(self) -> None:
        """Go on without the late parts.

        Raises:
            StackError: one of them is essential.
        """
        late = [part for part in self._parts if part.name not in self._ready]
        if any(isinstance(part, Action) or self._monitor.is_essential(part.name) for part in late):
            raise StackError(self._deadline_message())
        for part in late:
            self._on_event(Event(part.name, "failed", f"not ready; {self._monitor.log_excerpt(part.name)}"))
        self._ready |= {part.name for part in late}

    def _deadline_message(self) -> str:
        lines = [f"not ready after {self._settings.stack.start_deadline_s:g} s (STEPSTREAM_STACK_START_DEADLINE_S):"]
        for part in self._parts:
            if part.name not in self._started_at or part.name in self._ready:
                continue
            if isinstance(part, Action):
                lines.append(f"{part.name} has not finished")
            elif part.external:
                lines.append(
                    f"{part.name} runs elsewhere and does not answer at {part.ready.address}: "
                    f"start it there, or set {VARIABLES[part.name]}"
                )
            else:
                excerpt = self._monitor.log_excerpt(part.name)
                lines.append(f"{part.name} does not answer at {part.ready.address}; {excerpt}")
        return "\n".join(lines)


def _acts_on(part: Part, names: Collection[str]) -> bool:
    return isinstance(part, Action) and any(name in names for name in part.after)


class _BackgroundAction:
    """An action on its own thread, so that processes that do not need it start meanwhile."""

    def __init__(self, action: Action, settings: Settings) -> None:
        self._action = action
        self._error: BaseException | None = None
        # A daemon thread: an interrupted start does not wait for it.
        self._thread = threading.Thread(target=self._run, args=(settings,), name=action.name, daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """Return True if the action has finished.

        Raises:
            StackError: the action failed.
        """
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise StackError(f"{self._action.name}: {self._error or repr(self._error)}") from self._error
        return True

    def _run(self, settings: Settings) -> None:
        try:
            self._action.run(settings)
        except BaseException as error:
            self._error = error
