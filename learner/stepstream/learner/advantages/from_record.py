"""Convert a labelled trajectory to the input of the advantage rules. Pure."""

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from stepstream.learner.advantages.base import Step, Trajectory


def step_positions(record: Mapping[str, Any]) -> dict[int, int]:
    """Return the position of each step in the list of a LabeledTrajectory, by step index."""
    return {step["step_index"]: position for position, step in enumerate(record["steps"])}


def trajectory_of(record: Mapping[str, Any]) -> Trajectory:
    """Convert a LabeledTrajectory.

    The key of an observation is the tokens between the previous response in its training sequence and the step's own
    response: the part that was new to the agent, or the whole prompt where a sequence begins. The key of an action is
    its tool calls, or its sampled tokens if it called no tool. The key of an end is the last step's reward. A
    trajectory that names a parent step is a branch behind that step.

    Args:
        record: its spans must name steps that it has.
    """
    positions = step_positions(record)
    observations: dict[int, bytes] = {}
    sampled: dict[int, list[int]] = {}
    for sequence in record["sequences"]:
        ids, end = sequence["token_ids"], 0
        for span in sequence["spans"]:
            position = positions[span["step_index"]]
            if position not in observations:
                observations[position] = _digest(ids[end : span["start"]])
            sampled.setdefault(position, []).extend(ids[span["start"] : span["end"]])
            end = span["end"]
    steps = tuple(
        Step(
            reward=step["reward"],
            tokens=len(sampled.get(position, ())),
            observation=observations.get(position),
            action=_action(step, sampled.get(position)),
            scores={component["name"]: component["raw_value"] for component in step["components"]},
        )
        for position, step in enumerate(record["steps"])
    )
    truncated = record["end"] == "truncated"
    return Trajectory(
        steps=steps,
        outcome=record["reward"],
        truncated=truncated,
        final_observation=None if truncated or not steps else ("end", steps[-1].reward),
        succeeded=bool(record["success"]),
        tool_calls=sum(len(step["tool_calls"]) for step in record["steps"]),
        name=record["trajectory_id"],
        branch=_branch(record),
    )


def _action(step: Mapping[str, Any], sampled: list[int] | None) -> Hashable:
    if step["tool_calls"]:
        return tuple((call["name"], call["arguments"]) for call in step["tool_calls"])
    return _digest(sampled) if sampled else None


def _branch(record: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the parent attempt and the step behind which this one continues; None: it has no parent."""
    parent, step = record["parent_trajectory_id"], record["parent_step_index"]
    return None if parent is None or step is None else (parent, step)


def _digest(ids: list[int]) -> bytes:
    return blake2b(np.asarray(ids, dtype="<i8").tobytes(), digest_size=16).digest()
