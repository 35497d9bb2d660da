"""Run functions in distributed ranks, forked from a process that has the imports, which take seconds."""

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from waiting import TIMEOUT_S

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


def run_in_ranks(size: int, work: Callable[..., Any], *arguments: Any, **fields: Any) -> list[Any]:
    """Return the results of `work` in `size` ranks; `work` must be a function of an importable module."""
    environment = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_block(1))}
    running = []
    for rank in range(size):
        receiver, sender = _FORKS.Pipe(duplex=False)
        process = _FORKS.Process(
            target=_rank, args=(environment | {"RANK": str(rank)}, sender, partial(work, **fields), arguments)
        )
        process.start()
        sender.close()
        running.append((process, receiver))
    try:
        return [_answer(receiver) for _, receiver in running]
    finally:
        for process, receiver in running:
            receiver.close()
            process.join(5.0)
            process.kill()
            process.join()
            process.close()


def _answer(pipe: Connection) -> Any:
    assert pipe.poll(TIMEOUT_S), f"a rank did not answer within {TIMEOUT_S:g} s"
    result, fault = pipe.recv()
    assert fault is None, fault
    return result


def _rank(environment: dict[str, str], pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    from stepstream.learner.model.distributed import join_ranks

    os.environ.update(environment)
    try:
        with join_ranks(exact=False):
            pipe.send((work(*arguments), None))
    except BaseException as fault:
        pipe.send((None, repr(fault)))
        raise
