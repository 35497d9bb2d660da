"""Load and train policies in ranks; every function is called by each of them."""

import os
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from labelled_records import attempt, group_of
from peak_tensors import PeakTensors
from rank_training import save
from torch.utils._python_dispatch import TorchDispatchMode

from stepstream.config import LearnerSettings
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.model.checkpoint import write_version
from stepstream.learner.model.distributed import current_ranks, gather_full, local_shard
from stepstream.learner.model.forward import _probe
from stepstream.learner.model.policy import Policy
from stepstream.learner.model.rank_groups import WRITERS
from stepstream.learner.training.trainer import Trainer


def rows_for(vocabulary: int) -> list[TokenSequence]:
    return _probe(vocabulary)


def config_of(**fields: Any) -> LearnerSettings:
    return LearnerSettings.model_validate({"preset": "tiny", "warmup_updates": 0, "microbatch_tokens": 60, **fields})


def logprobs_of(folders: list[Path], **fields: Any) -> list[list[float]]:
    """Return the log-probabilities of the same rows under each model."""
    found = []
    for folder in folders:
        policy = Policy(folder, config_of(**fields))
        with torch.no_grad():
            found.append(policy.logprobs(rows_for(policy.model.config.vocab_size)).tolist())
    return found


def trained(folder: Path, target: Path | None, updates: tuple[int, ...], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the whole weights after some updates from a folder, and the norm of each first gradient."""
    trainer = Trainer(folder, config_of(**fields), folder)
    figures = [
        trainer.update(n, [[attempt(record) for record in group_of(f"{n}/{g}", 5)] for g in range(3)], version=1)
        for n in updates
    ]
    if target is not None:
        save(trainer, folder, target)
    weights = {name: gather_full(weight.detach()).numpy() for name, weight in trainer.policy.weights.items()}
    return {"weights": weights, "norms": [figure["grad_norm"] for figure in figures]}


class Collectives(TorchDispatchMode):
    """Counts the collective operations that this rank takes part in, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[func._opname] += 1
        return func(*args, **kwargs or {})


def collectives_of_a_step(folder: Path, fields: dict[str, Any]) -> dict[str, int]:
    """Return the collectives of an update with one step and several passes."""
    trainer = Trainer(folder, config_of(minibatches=1, **fields), folder)
    with Collectives() as traffic:
        trainer.update(1, [[attempt(record) for record in group_of(f"{g}", 5)] for g in range(6)], version=1)
    return dict(traffic.counts)


def saved_after_a_fault(folder: Path, target: Path) -> str:
    """Write a version from two ranks; the second's disk is full at first. Return the fault that rank 0 raised."""
    snapshot = Policy(folder, config_of(reproducible=False)).snapshot()
    pids = WRITERS.gather(os.getpid())
    if current_ranks().rank:
        snapshot.help_write()
        return ""
    limits = resource.prlimit(pids[1], resource.RLIMIT_FSIZE)
    resource.prlimit(pids[1], resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        write_version(snapshot, folder, target)
    except OSError as error:
        resource.prlimit(pids[1], resource.RLIMIT_FSIZE, limits)
        write_version(snapshot, folder, target)
        return str(error)
    return "no fault"


def peak_of_load(folder: Path) -> tuple[int, int]:
    """Return the most bytes of tensors while a policy is loaded, and the bytes of its own rows."""
    tensors = PeakTensors()
    with tensors:
        policy = Policy(folder, config_of())
    return tensors.peak, sum(local_shard(weight).nbytes for weight in policy.weights.values())
