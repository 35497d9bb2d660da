"""Build replay buffers, and logs of attempts to fold into them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from labelled_records import attempt, labelled

from stepstream.learner.data.attempt import Attempt, LogPosition
from stepstream.learner.data.replay_buffer import ReplayBuffer

SIZE = 3


def buffer(**changes: Any) -> ReplayBuffer:
    values: dict[str, Any] = {
        "group_size": SIZE,
        "wait_s": 10.0,
        "staleness_bound": 2,
        "root": 0,
        "version": 0,
        "positions": {0: 0},
    }
    return ReplayBuffer(**(values | changes))


def log_of(*records: Any) -> list[Attempt]:
    return [attempt(record, 0, offset) for offset, record in enumerate(records)]


def fold(into: ReplayBuffer, attempts: Sequence[Attempt], now_s: float = 0.0) -> ReplayBuffer:
    for each in attempts:
        into.add(each, now_s)
    return into


def positions_of(groups: Sequence[Sequence[Attempt]] | None) -> list[LogPosition]:
    return [each.position for group in groups or () for each in group]


GROUPS = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=SIZE + 1), min_size=1, max_size=5)


def log_from(groups: list[list[float]]) -> list[Attempt]:
    records = [labelled(f"g{g}", n, reward) for g, rewards in enumerate(groups) for n, reward in enumerate(rewards)]
    return log_of(*records)


def attempt_at(original: Attempt, offset: int, revision: int = 1) -> Attempt:
    """Return the attempt at a later offset."""
    return replace(original, position=(0, offset), revision=revision)
