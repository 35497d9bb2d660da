"""What the advantage rules see of a labelled trajectory, and the rule that the configuration names. Pure."""

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from stepstream.config import LearnerSettings
from stepstream.learner.advantages import (
    Rule,
    Step,
    Trajectory,
)
from stepstream.learner.advantages.from_config import POLICY, rule_of


def described(config: LearnerSettings) -> Rule:
    """The same rule to be asked about itself: without the critic of its settings, which may not be installed here."""
    return rule_of(config.model_copy(update={"credit_hindsight": POLICY}))


def positions(record: Mapping[str, Any]) -> dict[int, int]:
    """Where each step of a LabeledTrajectory stands in its list, by step index."""
    return {step["step_index"]: position for position, step in enumerate(record["steps"])}


def trajectory_of(record: Mapping[str, Any]) -> Trajectory:
    """A LabeledTrajectory as the rules see it.

    An observation is known by the tokens between the response before it in its training sequence and the step's own
    response: what was new to the agent, or its whole prompt where a sequence begins. An action is known by its tool
    calls, or by its sampled tokens where it called none. An end is known by the reward that came with it. A trajectory
    that names a step of another one goes on behind it.

    Args:
        record: whose spans name steps that it has.
    """
    place = positions(record)
    observations: dict[int, bytes] = {}
    sampled: dict[int, list[int]] = {}
    for sequence in record["sequences"]:
        ids, end = sequence["token_ids"], 0
        for span in sequence["spans"]:
            position = place[span["step_index"]]
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
    """Behind which step of which attempt it goes on."""
    parent, step = record["parent_trajectory_id"], record["parent_step_index"]
    return None if parent is None or step is None else (parent, step)


def _digest(ids: list[int]) -> bytes:
    return blake2b(np.asarray(ids, dtype="<i8").tobytes(), digest_size=16).digest()
