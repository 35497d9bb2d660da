"""Processes that train together, for tests: forked from one that has imported everything, since that takes seconds."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from waiting import PATIENCE_S

from stepstream.embedded.ports import free_block

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "stepstream.learner.training.trainer",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "transformers.models.llama.modeling_llama",
        "peft",
    ]
)


def in_ranks(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work` returns in each of `size` ranks; it must be a function of a module that can be imported."""
    environment = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_block(1))}
    running = []
    for rank in range(size):
        here, there = _FORKS.Pipe(duplex=False)
        process = _FORKS.Process(target=_rank, args=(environment | {"RANK": str(rank)}, there, work, arguments))
        process.start()
        there.close()
        running.append((process, here))
    try:
        return [_answer(here) for _, here in running]
    finally:
        for process, here in running:
            here.close()
            process.join(5.0)
            process.kill()
            process.join()
            process.close()


def _answer(pipe: Connection) -> Any:
    assert pipe.poll(PATIENCE_S), "a rank did not answer in time"
    found, fault = pipe.recv()
    assert fault is None, fault
    return found


def _rank(environment: dict[str, str], pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    from stepstream.learner.model.distributed import join_ranks

    os.environ.update(environment)
    try:
        with join_ranks():
            pipe.send((work(*arguments), None))
    except BaseException as fault:
        pipe.send((None, repr(fault)))
        raise
