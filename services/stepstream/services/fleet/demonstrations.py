"""Endless conversations of an environment's scripted, noisy agent: what a warm start learns from."""

import random
from collections.abc import Iterator

from stepstream.services.fleet.environment import Environment, Message


def demonstrations(environment: type[Environment], seed: int, noise: float) -> Iterator[list[Message]]:
    """Whole conversations on training tasks; the same for the same arguments."""
    rng = random.Random(f"demonstrations/{seed}")
    for task_id in environment.tasks(seed, "train"):
        yield environment(task_id).demonstration(rng, noise)
