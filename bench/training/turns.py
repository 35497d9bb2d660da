"""Time the turns of a side: each input line is a number of steps; print their time and peak memory as JSON."""

import json
import resource
import sys
import time


class Turns:
    """Clock of one side's turns."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._steps_left = 0
        self._spent = [0.0, 0.0]
        self._began = [0.0, 0.0]

    def wait(self) -> bool:
        """Block until the next step is due; return False at the end of input."""
        if self._steps_left:
            return True
        line = sys.stdin.readline()
        self._steps_left, self._spent = int(line or 0), [0.0, 0.0]
        return self._steps_left > 0

    def begin(self) -> None:
        """Start the clock of a step."""
        self._began = self._now()

    def end(self) -> None:
        """Stop the clock of a step; print the turn's figures after its last."""
        self._spent = [
            spent + now - began for spent, now, began in zip(self._spent, self._now(), self._began, strict=True)
        ]
        self._steps_left -= 1
        if not self._steps_left:
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
