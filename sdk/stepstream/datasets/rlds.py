"""RLDS episodes, and D4RL's flat arrays of them: observation, action, reward, discount and the flags of the ends. Pure.

A step's observation are the new messages of its prompt, its action is the response, its reward the labelled one. As
RLDS has it, one step more follows, which is `is_last` and whose action and reward mean nothing: it holds what came
back last. `is_terminal` tells a trajectory that its task ended from one that was cut.

No place in the format: everything but those; it is in `stepstream` of the episode. A record has no place for other
metadata of steps and for discounts.
"""

from collections.abc import Mapping
from typing import Any

from stepstream.datasets.chat import close
from stepstream.datasets.episode import NEUTRAL, Episode, Named, Origin, Turn, build
from stepstream.datasets.extension import KEY, extension, read_both
from stepstream.datasets.messages import digest_of, from_chat, text_of, to_chat
from stepstream.topics.events import Message, TrajectoryEnd, new_message

FORMAT = "rlds"
_KNOWN = {"observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal"}


def write(episode: Episode) -> list[dict[str, Any]]:
    """One document: the episode with its steps."""
    steps: list[dict[str, Any]] = []
    for place, step in enumerate(episode.steps):
        steps.append(
            {
                "observation": {"messages": [to_chat(message) for message in step["messages"]]},
                "action": to_chat(step["response"]) | {"role": "assistant"},
                "reward": episode.rewards.get(step["step_index"], 0.0),
                "discount": 1.0,
                "is_first": place == 0,
                "is_last": False,
                "is_terminal": False,
            }
        )
    last = episode.steps[-1]
    terminal = last["end"] == "terminated" or any(item["end"] == "terminated" for item in episode.feedback)
    results = [
        new_message(role="tool", content=call["result"], tool_call_id=call["call_id"])
        for call in last["response"]["tool_calls"]
        if call["result"] is not None
    ]
    steps[-1]["discount"] = 0.0 if terminal else 1.0
    steps.append(
        {
            "observation": {"messages": [to_chat(message) for message in results]},
            "action": None,
            "reward": 0.0,
            "discount": 0.0,
            "is_first": False,
            "is_last": True,
            "is_terminal": terminal,
        }
    )
    document: dict[str, Any] = {"episode_id": episode.trajectory_id, "steps": steps}
    document[KEY] = extension(episode, _native(document, NEUTRAL))
    return [document]


def read(document: Mapping[str, Any], origin: Origin) -> list[Episode]:
    """The episode of a document."""
    return [read_both(lambda origin: _native(document, origin), document.get(KEY), origin)]


def _native(document: Mapping[str, Any], origin: Origin) -> Episode:
    lost = {f"metadata {name}" for name in document if name not in ("episode_id", "steps", KEY)}
    turns: list[Turn] = []
    rest: list[Message] = []
    end: TrajectoryEnd = "truncated"
    for step in document["steps"]:
        lost |= {f"metadata {name} of steps" for name in step.keys() - _KNOWN}
        observed = _observed(step.get("observation"), lost)
        action = step.get("action") if step.get("is_last") else step["action"]
        if step.get("is_last") and (not isinstance(action, str | Mapping) or not action):
            rest += observed
            if isinstance(action, list) and any(action):
                lost.add("action of the last step")
        else:
            turns.append(Turn([*rest, *observed], _acted(action, lost), reward=_reward(step)))
            rest = []
        if step.get("is_terminal"):
            end = "terminated"
    if turns:
        close(turns[-1], rest, lost)
    name = document.get("episode_id")
    name = digest_of(document["steps"]) if name is None else str(name)
    return build(turns, Named(FORMAT, name), origin, end=end, lost=lost)


def _observed(observation: Any, lost: set[str]) -> list[Message]:
    if isinstance(observation, Mapping) and isinstance(observation.get("messages"), list):
        return [from_chat(message, lost) for message in observation["messages"]]
    text = text_of(observation)
    return [new_message(role="user", content=text)] if text else []


def _acted(action: Any, lost: set[str]) -> Message:
    if isinstance(action, Mapping) and "role" in action:
        return from_chat(action, lost) | {"role": "assistant"}
    return new_message(role="assistant", content=text_of(action))


def _reward(step: Mapping[str, Any]) -> float | None:
    reward = step.get("reward")
    return None if reward is None else float(reward)
