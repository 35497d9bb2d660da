"""Memory of all processes together: proportional set size, so that shared pages are counted once."""

import threading
from collections.abc import Callable, Sequence

import psutil

EVERY_S = 2.0


class MemoryWatch:
    """Samples the sum of the PSS of a set of processes in the background and keeps its peak."""

    def __init__(self, members: Callable[[], Sequence[psutil.Process]]) -> None:
        """Starts sampling; `members` names the processes of the moment."""
        self.peak_mb = 0.0
        self._members = members
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Ends the sampling; returns the peak in MB (10⁶ bytes)."""
        self._stopping.set()
        self._thread.join()
        return self.peak_mb

    def _watch(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self.peak_mb = max(self.peak_mb, pss_mb([psutil.Process(), *self._members()]))


def pss_mb(processes: Sequence[psutil.Process]) -> float:
    """Sum of the proportional set sizes in MB; processes that ended meanwhile count nothing."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 1e6
