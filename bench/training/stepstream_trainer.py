"""Run the learner's trainer as a side of the bench.

`stepstream_trainer.py FOLDER DEVICE THREADS MICROBATCH_TOKENS SETTINGS_JSON`
"""

import json
import sys
from pathlib import Path

import numpy as np
import ragged
from turns import Turns

from stepstream.config import LearnerSettings
from stepstream.learner.advantages import Step, Trajectory
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.model import packing
from stepstream.learner.training.trainer import Trainer


def groups_of(rows: list[ragged.Row]) -> list[list[Attempt]]:
    """Return the batch as the learner's buffer returns it."""
    groups: dict[int, list[Attempt]] = {}
    for number, row in enumerate(rows):
        positions = np.flatnonzero(row.trained)
        tokens = TokenSequence(
            row.ids,
            positions,
            np.full(positions.size, -4.6, np.float32),
            np.zeros(positions.size, np.int64),
            row.steps.astype(np.int64),
        )
        steps = tuple(Step(tokens=int(count)) for count in np.bincount(row.steps))
        credit = Trajectory(steps, row.reward)
        attempt = Attempt((0, number), str(number), 0, str(row.group), row.reward, (tokens,), 0, credit=credit)
        groups.setdefault(row.group, []).append(attempt)
    return list(groups.values())


def main(folder: Path, device: str, threads: str, microbatch: str, more: str) -> None:
    """Train one gradient step on the whole batch at each turn, with credit and figures."""
    settings = json.loads(more)
    if settings.pop("share_nothing", False):
        packing._MIN_SHARED = 2**30
    config = LearnerSettings.model_validate(
        {
            "preset": "tiny",
            "device": device,
            "threads": int(threads),
            "microbatch_tokens": int(microbatch),
            "minibatches": 1,
            "warmup_updates": 0,
            "learning_rate": 1e-5,
            **settings,
        }
    )
    trainer, turns, number = Trainer(folder, config), Turns(device), 0
    groups = groups_of(ragged.read(folder))
    while turns.wait():
        number += 1
        turns.begin()
        trainer.update(number, groups, 0)
        turns.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
