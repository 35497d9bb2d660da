"""Measure the memory of all processes together, as proportional set size (PSS), which counts shared pages once."""

import threading
from collections.abc import Callable, Sequence

import psutil

SAMPLE_INTERVAL_S = 2.0


class MemoryWatch:
    """Samples the total PSS of a set of processes in the background and records its peak."""

    def __init__(self, members: Callable[[], Sequence[psutil.Process]]) -> None:
        """Start sampling this process and those that `members` returns at each sample."""
        self.peak_mb = 0.0
        self._members = members
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-watch", daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Stop sampling and return the peak in MB (10⁶ bytes)."""
        self._stopping.set()
        self._thread.join()
        return self.peak_mb

    def _sample(self) -> None:
        while not self._stopping.wait(SAMPLE_INTERVAL_S):
            self.peak_mb = max(self.peak_mb, pss_mb([psutil.Process(), *self._members()]))


def pss_mb(processes: Sequence[psutil.Process]) -> float:
    """Return the sum of the proportional set sizes in MB, without processes that have ended."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 1e6
