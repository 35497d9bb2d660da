"""Give a fuzz target many random cases, and check that each ends soon and that all together leave nothing behind."""

import functools
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stepstream.services.gateway.errors import GatewayError
from stepstream.services.store.errors import StoreError

Target = Callable[[random.Random], None]
CASES = int(os.environ.get("STEPSTREAM_FUZZ_CASES", "20000"))
"""Cases of each target; `make fuzz` sets more."""
CASE_S = 20.0
"""Largest CPU time of one case in seconds: other processes of a busy machine don't count."""
_BATCHES = 20
"""Seeds of Hypothesis: it keeps 50 blocks of memory for each, and takes as long as for ten cases."""
_BLOCKS = 5_000
"""Largest growth in blocks of memory: what Hypothesis keeps, and caches of libraries."""


def fuzz(target: Target, cases: int = CASES) -> None:
    """Call a target with `cases` random generators.

    Raises:
        AssertionError: the second half of the cases left memory behind. A case's own exceptions pass.
    """
    batch_cases = -(-cases // _BATCHES)
    done = 0
    blocks: list[int] = []

    @settings(  # a smaller seed gives no simpler case: nothing to shrink
        max_examples=_BATCHES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.integers(0, 2**48))
    def run(batch: int) -> None:
        nonlocal done
        for number in range(batch_cases):
            seed = batch * batch_cases + number
            with _limit_s(CASE_S, seed):
                target(random.Random(seed))
        done += 1
        if done in (_BATCHES // 2, _BATCHES):
            blocks.append(_allocated())

    with _without_logs():
        run()
    assert done == _BATCHES, f"{done} of {_BATCHES} batches"
    growth = blocks[-1] - blocks[0]
    assert growth < _BLOCKS, f"{growth} blocks of memory more after the second half"


def refused(error: GatewayError | StoreError) -> None:
    """Check that an error is the sender's fault."""
    assert error.status < 500, error


@contextmanager
def _limit_s(seconds: float, seed: int) -> Iterator[None]:
    """Fail a case that uses more CPU time; the test's own timeout ends one that waits."""

    def fail(*_: object) -> None:
        pytest.fail(f"the case of seed {seed} has not ended after {seconds} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def _without_logs() -> Iterator[None]:
    """Switch logs off: pytest would keep a traceback of each."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _allocated() -> int:
    """Return the blocks of memory in use, with the product's bounded caches emptied."""
    # Not `isinstance`: it reads `__class__`, at which placeholders of torch's deprecated names warn.
    for cache in [each for each in gc.get_objects() if type(each) is functools._lru_cache_wrapper]:
        if cache.__module__.startswith("stepstream.") and cache.cache_parameters()["maxsize"] is not None:
            cache.cache_clear()
    gc.collect()
    return sys.getallocatedblocks()
