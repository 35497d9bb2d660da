"""Convert RLDS episodes: observation, action, reward, discount, `is_first`, `is_last` and `is_terminal`. Pure.

A step's observation is the new messages of its prompt, its action the response, its reward the labelled one. As in
RLDS, a final step with `is_last` and without a meaningful action or reward holds the last tool results. `is_terminal`
is true if the task ended the trajectory, false if a limit did.

The format has no other fields; the rest is in the episode's `stepstream`. Reading omits other metadata, and discounts.
"""

from collections.abc import Mapping
from typing import Any

from stepstream.datasets.episode import NEUTRAL, DocumentName, Episode, Origin, Turn, attach_last_results, build_episode
from stepstream.datasets.extension import KEY, build_extension, read_with_extension
from stepstream.datasets.messages import digest, from_chat, text_of, to_chat
from stepstream.topics.events import Message, TrajectoryEnd, new_message

FORMAT = "rlds"
_KNOWN = {"observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal"}


def write(episode: Episode) -> list[dict[str, Any]]:
    """Return one document: the episode with its steps."""
    steps: list[dict[str, Any]] = []
    for index, step in enumerate(episode.steps):
        steps.append(
            {
                "observation": {"messages": [to_chat(message) for message in step["messages"]]},
                "action": to_chat(step["response"]) | {"role": "assistant"},
                "reward": episode.rewards.get(step["step_index"], 0.0),
                "discount": 1.0,
                "is_first": index == 0,
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
    document[KEY] = build_extension(episode, _read_native(document, NEUTRAL))
    return [document]


def read(document: Mapping[str, Any], origin: Origin) -> list[Episode]:
    """Return the episode of a document."""
    return [read_with_extension(lambda origin: _read_native(document, origin), document.get(KEY), origin)]


def _read_native(document: Mapping[str, Any], origin: Origin) -> Episode:
    omitted = {f"metadata {name}" for name in document if name not in ("episode_id", "steps", KEY)}
    turns: list[Turn] = []
    pending: list[Message] = []
    end: TrajectoryEnd = "truncated"
    for step in document["steps"]:
        omitted |= {f"metadata {name} of steps" for name in step.keys() - _KNOWN}
        observed = _messages(step.get("observation"), omitted)
        action = step.get("action") if step.get("is_last") else step["action"]
        if step.get("is_last") and (not isinstance(action, str | Mapping) or not action):
            pending += observed
            if isinstance(action, list) and any(action):
                omitted.add("action of the last step")
        else:
            turns.append(Turn([*pending, *observed], _response(action, omitted), reward=_reward(step)))
            pending = []
        if step.get("is_terminal"):
            end = "terminated"
    if turns:
        attach_last_results(turns[-1], pending, omitted)
    name = document.get("episode_id")
    name = digest(document["steps"]) if name is None else str(name)
    return build_episode(turns, DocumentName(FORMAT, name), origin, end=end, omitted=omitted)


def _messages(observation: Any, omitted: set[str]) -> list[Message]:
    if isinstance(observation, Mapping) and isinstance(observation.get("messages"), list):
        return [from_chat(message, omitted) for message in observation["messages"]]
    text = text_of(observation)
    return [new_message(role="user", content=text)] if text else []


def _response(action: Any, omitted: set[str]) -> Message:
    if isinstance(action, Mapping) and "role" in action:
        return from_chat(action, omitted) | {"role": "assistant"}
    return new_message(role="assistant", content=text_of(action))


def _reward(step: Mapping[str, Any]) -> float | None:
    reward = step.get("reward")
    return None if reward is None else float(reward)
