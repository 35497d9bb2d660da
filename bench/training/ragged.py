"""Draw, save and read the ragged multi-step batches of the learner's bench; needs only numpy."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = "batch.npz"


@dataclass(frozen=True)
class Shape:
    """Sizes of a batch; pairs are bounds of uniform draws, in tokens, `steps` in steps."""

    groups: int
    size: int
    prompt: tuple[int, int]
    steps: tuple[int, int]
    response: tuple[int, int]
    observation: tuple[int, int]


SHAPES = {
    # Attempts of 1 to 8 steps; the context begins with instructions and a task.
    "ragged": Shape(8, 8, (32, 96), (1, 8), (8, 32), (4, 48)),
    # For models of 100M parameters and more on a CPU: a quarter of the attempts.
    "ragged-few": Shape(2, 8, (32, 96), (1, 8), (8, 32), (4, 48)),
    # For a GPU: with the lengths of agents that use tools.
    "ragged-long": Shape(8, 8, (512, 1536), (1, 8), (64, 384), (32, 512)),
}


@dataclass(frozen=True)
class Row:
    """One attempt as one merged sequence."""

    ids: np.ndarray
    trained: np.ndarray
    """True for sampled tokens. Shape [length], bool."""
    steps: np.ndarray
    """Step index of each trained token. Shape [trained]."""
    prompt: int
    group: int
    reward: float


def draw(shape: Shape, vocabulary: int, seed: int) -> list[Row]:
    """Return a batch; attempts of one group share only their prompt."""
    rng = np.random.default_rng(seed)

    def length(bounds: tuple[int, int]) -> int:
        return int(rng.integers(bounds[0], bounds[1] + 1))

    def tokens(count: int) -> np.ndarray:
        return rng.integers(4, vocabulary, count)

    rows = []
    for group in range(shape.groups):
        prompt = tokens(length(shape.prompt))
        for attempt in range(shape.size):
            parts, trained, steps = [prompt], [np.zeros(prompt.size, bool)], []
            count = length(shape.steps)
            for step in range(count):
                response = tokens(length(shape.response))
                parts.append(response)
                trained.append(np.ones(response.size, bool))
                steps += [step] * response.size
                if step + 1 < count:
                    parts.append(tokens(length(shape.observation)))
                    trained.append(np.zeros(parts[-1].size, bool))
            rows.append(
                Row(
                    np.concatenate(parts),
                    np.concatenate(trained),
                    np.array(steps),
                    prompt.size,
                    group,
                    float(attempt % 2),
                )
            )
    return rows


def save(rows: list[Row], folder: Path) -> None:
    """Save a batch."""
    np.savez(
        folder / FILE,
        ids=np.concatenate([row.ids for row in rows]),
        trained=np.concatenate([row.trained for row in rows]),
        steps=np.concatenate([row.steps for row in rows]),
        lengths=[row.ids.size for row in rows],
        counts=[row.steps.size for row in rows],
        prompts=[row.prompt for row in rows],
        groups=[row.group for row in rows],
        rewards=[row.reward for row in rows],
    )


def read(folder: Path) -> list[Row]:
    """Load a batch."""
    file = np.load(folder / FILE)
    ends, step_ends = file["lengths"].cumsum()[:-1], file["counts"].cumsum()[:-1]
    return [
        Row(ids, trained, steps, int(prompt), int(group), float(reward))
        for ids, trained, steps, prompt, group, reward in zip(
            np.split(file["ids"], ends),
            np.split(file["trained"], ends),
            np.split(file["steps"], step_ends),
            file["prompts"],
            file["groups"],
            file["rewards"],
            strict=True,
        )
    ]
