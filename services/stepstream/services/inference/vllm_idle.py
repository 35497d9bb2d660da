"""Let vLLM's processes sleep while one waits for another.

vLLM 0.32 polls for a second after each message, so the process that schedules keeps a core busy while the one that
computes runs a step. On a CPU that core is missing elsewhere: in the demo, from the learner.
"""

from typing import Any


def sleep_while_waiting() -> None:
    """Patch vLLM's queue between its processes in this process; a second call has no effect."""
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    original = SpinCondition.__init__
    if getattr(original, "sleeps", False):
        return

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.busy_loop_s = 0

    init.sleeps = True  # type: ignore[attr-defined]
    SpinCondition.__init__ = init
