"""Show the progress of a run: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stepstream.demo.run_stats import Rate, Snapshot

LINE_INTERVAL_S = 5.0
MAX_VERSIONS = 8
"""Versions in the live table, the newest ones."""


class View(Protocol):
    """A display of a run's progress."""

    def print_line(self, line: str) -> None:
        """Print a line that stays visible."""

    def update(self, snapshot: Snapshot, elapsed_s: float) -> None:
        """Show the current statistics."""

    def close(self) -> None:
        """End the display and restore the terminal."""


def open_view(target: float, deadline_s: float) -> View:
    """Return a live view if standard output is a terminal, else plain lines."""
    return LiveView(target, deadline_s) if sys.stdout.isatty() else PlainView(target)


def percent(rate: Rate) -> str:
    """Return a rate with its interval, in percent."""
    if rate.value is None or rate.interval is None:
        return "–"
    low, high = rate.interval
    return f"{100 * rate.value:.1f} % ({100 * low:.0f}–{100 * high:.0f}, n={rate.n})"


def served(snapshot: Snapshot) -> str:
    """Return the version that each worker serves, as text."""
    return ", ".join(f"{worker} v{version}" for worker, version in sorted(snapshot.served.items())) or "–"


class PlainView:
    """Prints a line every `LINE_INTERVAL_S`."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._printed_at = 0.0

    def print_line(self, line: str) -> None:
        """Print the line immediately."""
        print(line, flush=True)

    def update(self, snapshot: Snapshot, elapsed_s: float) -> None:
        """Print a line unless the last one is too recent."""
        if time.monotonic() - self._printed_at < LINE_INTERVAL_S:
            return
        self._printed_at = time.monotonic()
        self.print_line(
            f"{elapsed_s:4.0f} s  version {snapshot.newest_version}  success {percent(snapshot.recent)}"
            f" of {100 * self._target:.0f} %  {snapshot.steps} steps, {snapshot.steps_per_second:.0f}/s"
            f"  staleness {snapshot.staleness_max or 0:.0f}  serving {served(snapshot)}"
        )

    def close(self) -> None:
        """Do nothing: plain lines leave the terminal unchanged."""


class LiveView:
    """Draws a table again at each update."""

    def __init__(self, target: float, deadline_s: float) -> None:
        self._target = target
        self._deadline_s = deadline_s
        self._console = Console()
        self._live: Live | None = None

    def print_line(self, line: str) -> None:
        """Print a line above the table."""
        self._console.print(Text(line))

    def update(self, snapshot: Snapshot, elapsed_s: float) -> None:
        """Draw the table."""
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(self._table(snapshot, elapsed_s), refresh=True)

    def close(self) -> None:
        """Stop drawing; the last table stays on the screen."""
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
        for version, rate in snapshot.by_version[-MAX_VERSIONS:]:
            table.add_row(f"version {version}", percent(rate))
        return table
