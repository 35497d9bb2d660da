"""A side of the bench takes turns: it trains as many steps as a line on its input says, and tells what they took."""

import json
import resource
import sys
import time


class Turns:
    """Clock of one side."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._left = 0
        self._spent = [0.0, 0.0]
        self._began = [0.0, 0.0]

    def wait(self) -> bool:
        """Blocks until there is a turn; False when there are no more."""
        if self._left:
            return True
        line = sys.stdin.readline()
        self._left, self._spent = int(line or 0), [0.0, 0.0]
        return self._left > 0

    def begin(self) -> None:
        """A step begins."""
        self._began = self._now()

    def end(self) -> None:
        """A step has ended."""
        self._spent = [
            spent + now - began for spent, now, began in zip(self._spent, self._now(), self._began, strict=True)
        ]
        self._left -= 1
        if not self._left:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            if self._cuda:
                import torch

                peak = torch.cuda.max_memory_allocated() / 2**20
            print(json.dumps({"wall_s": self._spent[0], "cpu_s": self._spent[1], "peak_mib": peak}), flush=True)

    def _now(self) -> list[float]:
        if self._cuda:
            import torch

            torch.cuda.synchronize()
        return [time.perf_counter(), time.process_time()]
