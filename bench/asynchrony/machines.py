"""Define the simulated machines, staleness bounds and objectives."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asynchrony.stages import Stages, digest
from stepstream.config import Settings

UNBOUNDED = 1_000_000
BOUNDS: tuple[int | None, ...] = (0, 1, 2, 4, 8, None)
OBJECTIVES: dict[str, dict[str, str]] = {
    "decoupled": {"loss_proximal": "forward", "loss_weight": "tis"},
    "coupled": {"loss_proximal": "behaviour", "loss_weight": "none"},
}


@dataclass(frozen=True, slots=True)
class Machine:
    title: str
    cores: float
    """Cores that all processes share; infinite: each process has its own."""
    workers: int
    """Inference workers."""
    stages: Callable[[Stages], Stages]

    def settings(self, settings: Settings, bound: int | None, objective: str) -> Settings:
        """Return the demo's settings for this machine, objective and staleness bound; None: no bound."""
        fleet = {
            "max_ahead": -1 if bound is None else bound,
            "concurrency": settings.fleet.concurrency * self.workers,
        }
        learner = {"staleness_bound": UNBOUNDED if bound is None else bound, **OBJECTIVES[objective]}
        changes: dict[str, dict[str, Any]] = {"fleet": fleet, "learner": learner, "stack": {"workers": self.workers}}
        return settings.model_copy(
            update={name: getattr(settings, name).model_copy(update=fields) for name, fields in changes.items()}
        )


def spread(stages: Stages, over: int = 16) -> Stages:
    """Return stages with `over` processes of each step-carrying kind, and a decoding time independent of rows.

    A GPU's decoding time is independent of rows while reading the weights limits it.
    """
    plumbing = {name: seconds / over for name, seconds in stages.plumbing.items()}
    return dataclasses.replace(stages, decode_row_s=0.0, plumbing=plumbing)


MACHINES = {
    "shared": Machine("2 shared cores, every process on them", 2, 1, lambda stages: stages),
    "apart": Machine("A machine for each process, otherwise unchanged", math.inf, 1, lambda stages: stages),
    "separate": Machine(
        "Separate machines: one learner, four inference workers whose decoding time is independent of rows, and "
        "sixteen processes of each step-carrying kind",
        math.inf,
        4,
        spread,
    ),
}


def wanted_simulations(seeds: int) -> list[dict[str, Any]]:
    """Return the runs seed by seed, so that an unfinished bench has a full table of fewer seeds."""
    return [
        {"machine": machine, "bound": bound, "objective": objective, "seed": seed, "stages": digest()}
        for seed in range(seeds)
        for machine in MACHINES
        for objective in OBJECTIVES
        for bound in BOUNDS
        if machine != "apart" or (objective == "decoupled" and bound in (0, 1))
    ]
