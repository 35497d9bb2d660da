"""What a person sees while the demo runs: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stepstream.demo.figures import Rate, Snapshot

LINE_EVERY_S = 5.0
SHOWN_VERSIONS = 8


class View(Protocol):
    """Shows the progress of a run."""

    def say(self, line: str) -> None:
        """One line that stays."""

    def show(self, snapshot: Snapshot, elapsed_s: float) -> None:
        """The loop as it stands."""

    def close(self) -> None:
        """Ends the view and leaves the terminal as it was."""


def open_view(target: float, deadline_s: float) -> View:
    """A live view where standard output is a terminal, plain lines where it is not."""
    return LiveView(target, deadline_s) if sys.stdout.isatty() else PlainView(target)


def percent(rate: Rate) -> str:
    """A rate with its interval, in percent."""
    if rate.value is None or rate.interval is None:
        return "–"
    low, high = rate.interval
    return f"{100 * rate.value:.1f} % ({100 * low:.0f}–{100 * high:.0f}, n={rate.n})"


def served(snapshot: Snapshot) -> str:
    """Which version each worker serves."""
    return ", ".join(f"{worker} v{version}" for worker, version in sorted(snapshot.served.items())) or "–"


class PlainView:
    """A line every few seconds."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._last = 0.0

    def say(self, line: str) -> None:
        """One line."""
        print(line, flush=True)

    def show(self, snapshot: Snapshot, elapsed_s: float) -> None:
        """One line, if the last one is old enough."""
        if time.monotonic() - self._last < LINE_EVERY_S:
            return
        self._last = time.monotonic()
        self.say(
            f"{elapsed_s:4.0f} s  version {snapshot.newest_version}  success {percent(snapshot.recent)}"
            f" of {100 * self._target:.0f} %  {snapshot.steps} steps, {snapshot.steps_per_second:.0f}/s"
            f"  staleness {snapshot.staleness_max or 0:.0f}  serving {served(snapshot)}"
        )

    def close(self) -> None:
        """Nothing to leave."""


class LiveView:
    """A table that is drawn again once a second."""

    def __init__(self, target: float, deadline_s: float) -> None:
        self._target = target
        self._deadline_s = deadline_s
        self._console = Console()
        self._live: Live | None = None

    def say(self, line: str) -> None:
        """One line above the table."""
        self._console.print(Text(line))

    def show(self, snapshot: Snapshot, elapsed_s: float) -> None:
        """Draws the table."""
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(self._table(snapshot, elapsed_s), refresh=True)

    def close(self) -> None:
        """Leaves the last table on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _table(self, snapshot: Snapshot, elapsed_s: float) -> Table:
        table = Table(show_header=False, box=None, padding=(0, 2))
        value = snapshot.recent.value or 0.0
        table.add_row("success", ProgressBar(total=self._target, completed=min(value, self._target), width=40))
        table.add_row("", f"{percent(snapshot.recent)}, target {100 * self._target:.0f} %")
        table.add_row("time", f"{elapsed_s:.0f} of at most {self._deadline_s:.0f} s")
        table.add_row("steps", f"{snapshot.steps} ({snapshot.steps_per_second:.0f}/s)")
        table.add_row("newest version", str(snapshot.newest_version))
        table.add_row("served", served(snapshot))
        table.add_row("staleness", f"at most {snapshot.staleness_max or 0:.0f} versions")
        for version, rate in snapshot.by_version[-SHOWN_VERSIONS:]:
            table.add_row(f"version {version}", percent(rate))
        return table
