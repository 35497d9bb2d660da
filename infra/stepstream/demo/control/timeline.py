"""Draw the order of the events, with one stretch in which nothing happens, and name what each calls for. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["tool_breaks", "better_examples", "weights_can_learn", "poisoned_checkpoint", "gameable_reward", "quiet"]
EVENTS: tuple[Kind, ...] = (
    "tool_breaks",
    "better_examples",
    "weights_can_learn",
    "poisoned_checkpoint",
    "gameable_reward",
)
SHORT_EVENTS: tuple[Kind, ...] = ("better_examples", "poisoned_checkpoint")
"""Events of the short form: those whose answer needs no learning."""
BAD: tuple[Kind, ...] = ("tool_breaks", "poisoned_checkpoint", "gameable_reward")
"""Events whose effect has to be undone."""
NAMES: dict[Kind, str] = {
    "tool_breaks": "a tool breaks",
    "better_examples": "better examples exist",
    "weights_can_learn": "the weights can learn",
    "poisoned_checkpoint": "a poisoned checkpoint is published",
    "gameable_reward": "a reward becomes gameable",
    "quiet": "nothing happens",
}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An event of the run, or its quiet stretch."""

    kind: Kind
    began_us: int
    """Time at which it happened, in microseconds since the Unix epoch."""
    ended_us: int
    """Time at which the next one could happen."""
    subject: str = ""
    """Subject of the event: the tool, the harness version or the checkpoint's version; empty: the model."""


def order_of(seed: int, events: Sequence[Kind] = EVENTS) -> list[Kind]:
    """Return the events and the quiet stretch in an order drawn from the seed. Something happens before the stretch."""
    rng = random.Random(f"order/{seed}")
    order = list(events)
    rng.shuffle(order)
    order.insert(rng.randint(1, len(order)), "quiet")
    return order
