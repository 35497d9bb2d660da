"""ADP, the Agent Data Protocol: a trajectory as a list of actions and observations. Pure.

A step of ours is a run of actions: a message, or the calls of one response. The format asks that every action with a
`tool_call_id` has its observation, and that a call which something follows has one: a call whose result nobody saw
gets an empty observation.

No place in the format: the model, tokens, logprobs, versions, times, consent, tenant and person, group, feedback,
branches, text that is no JSON object in a call's arguments. They are in `details.stepstream`. A record has no place
for: images and web pages as such (their text is kept), the rest of `details`.
"""

from collections.abc import Mapping
from typing import Any

from stepstream.datasets.chat import close
from stepstream.datasets.episode import NEUTRAL, Episode, Named, Origin, Turn, Unreadable, build
from stepstream.datasets.extension import KEY, extension, read_both
from stepstream.datasets.messages import arguments_of, others, text_of
from stepstream.topics.events import Message, Step, new_message, new_tool_call

FORMAT = "adp"
_WRITTEN = "1.2.0"
_KNOWN = ("schema_version", "id", "content", "details")
_ACTIONS = ("api_action", "code_action", "message_action")
_OURS = {"system": "system", "user": "user", "agent": "assistant", "assistant": "assistant"}


def write(episode: Episode) -> list[dict[str, Any]]:
    """One document."""
    content: list[dict[str, Any]] = []
    calls = _Calls()
    for step in episode.steps:
        for message in step["messages"]:
            content += _observation(message, calls)
        content += calls.unanswered()
        content += _actions(step, calls, episode.rewards.get(step["step_index"]))
    results = [call for call in episode.steps[-1]["response"]["tool_calls"] if call["result"] is not None]
    for call in results:
        content += [_text("environment", call["result"] or "", tool_call_id=calls.answered(call["call_id"]))]
    if results:
        content += calls.unanswered()
    else:
        calls.unlink()
    document: dict[str, Any] = {
        "schema_version": _WRITTEN,
        "id": episode.trajectory_id,
        "content": content,
        "details": {},
    }
    document["details"][KEY] = extension(episode, _native(document, NEUTRAL))
    return [document]


def read(document: Mapping[str, Any], origin: Origin) -> list[Episode]:
    """The episode of a document."""
    told = (document.get("details") or {}).get(KEY)
    return [read_both(lambda origin: _native(document, origin), told, origin)]


class _Calls:
    """The calls that wait for their observation, by the ids that the format asks for: each once in a trajectory."""

    def __init__(self) -> None:
        self._open: list[tuple[str, dict[str, Any]]] = []
        self._used: set[str] = set()

    def add(self, call_id: str, action: dict[str, Any]) -> None:
        """An action, which gets its id."""
        name, number = call_id or "call", 1
        while name in self._used:
            number += 1
            name = f"{call_id or 'call'}-{number}"
        self._used.add(name)
        action["tool_call_id"] = name
        self._open.append((call_id, action))

    def answered(self, call_id: str | None) -> str | None:
        """The id of the action that an observation with this call's id is of; None: none waits for it."""
        for place, (known, action) in enumerate(self._open):
            if known == call_id:
                del self._open[place]
                return str(action["tool_call_id"])
        return None

    def unanswered(self) -> list[dict[str, Any]]:
        """An empty observation of each that still waits, since something else follows."""
        waiting, self._open = self._open, []
        return [_text("environment", "", tool_call_id=action["tool_call_id"]) for _, action in waiting]

    def unlink(self) -> None:
        """Takes the ids from those that still wait, since nothing follows."""
        for _, action in self._open:
            del action["tool_call_id"]


def _observation(message: Message, calls: _Calls) -> list[dict[str, Any]]:
    """What a new message of a prompt is; a call that something else follows is answered first."""
    if message["role"] == "tool" and (call_id := calls.answered(message["tool_call_id"])) is not None:
        return [_text("environment", message["content"], message["name"], call_id)]
    before = calls.unanswered()
    if message["role"] in ("system", "developer"):
        return [*before, _text("user", message["content"], "system")]
    source = {"assistant": "agent", "tool": "environment"}.get(message["role"], "user")
    return [*before, _text(source, message["content"], message["name"])]


def _text(source: str, content: str, name: str | None = None, tool_call_id: str | None = None) -> dict[str, Any]:
    observation: dict[str, Any] = {"class_": "text_observation", "content": content, "source": source}
    if name is not None:
        observation["name"] = name
    if tool_call_id is not None:
        observation["tool_call_id"] = tool_call_id
    return observation


def _actions(step: Step, calls: _Calls, reward: float | None) -> list[dict[str, Any]]:
    response = step["response"]
    actions: list[dict[str, Any]] = []
    for call in response["tool_calls"]:
        action: dict[str, Any] = {
            "class_": "api_action",
            "function": call["name"],
            "kwargs": arguments_of(call["arguments"]),
        }
        calls.add(call["call_id"], action)
        actions.append(action)
    if not actions:
        actions = [{"class_": "message_action", "content": response["content"]}]
    elif response["content"]:
        actions[0]["description"] = response["content"]
    if response["reasoning"] is not None:
        actions[0]["reasoning_content"] = response["reasoning"]
    if reward is not None:
        actions[0]["reward"] = reward
    return actions


def _native(document: Mapping[str, Any], origin: Origin) -> Episode:
    details = document.get("details") or {}
    lost = others(document, _KNOWN) | {f"details.{name}" for name in others(details, (KEY,))}
    turns: list[Turn] = []
    pending: list[Message] = []
    in_run = False
    for item in document["content"]:
        kind = item["class_"]
        if kind in _ACTIONS:
            if not in_run or kind == "message_action" or item.get("description") or item.get("reasoning_content"):
                turns.append(Turn(pending, new_message(role="assistant", content=_said(item))))
                turns[-1].response["reasoning"] = item.get("reasoning_content")
                pending = []
            _add_call(turns[-1].response, item)
            _add_reward(turns, item)
            in_run = True
        else:
            pending.append(_message(item, lost))
            _add_reward(turns, item)
            in_run = False
    if turns:
        close(turns[-1], pending, lost)
    return build(turns, Named(FORMAT, str(document["id"])), origin, lost=lost)


def _said(action: Mapping[str, Any]) -> str:
    if action["class_"] != "message_action":
        return action.get("description") or ""
    thought = action.get("description")
    return f"{thought}\n{action['content']}" if thought else str(action["content"])


def _add_call(response: Message, action: Mapping[str, Any]) -> None:
    if action["class_"] == "message_action":
        return
    name, arguments = action.get("function"), action.get("kwargs")
    if action["class_"] == "code_action":
        name, arguments = action["language"], {"code": action["content"]}
    call_id = action.get("tool_call_id") or ""
    response["tool_calls"].append(new_tool_call(call_id=call_id, name=text_of(name), arguments=text_of(arguments)))


def _add_reward(turns: list[Turn], item: Mapping[str, Any]) -> None:
    if item.get("reward") is not None and turns:
        turns[-1].reward = (turns[-1].reward or 0.0) + item["reward"]


def _message(item: Mapping[str, Any], lost: set[str]) -> Message:
    kind = item["class_"]
    if kind == "text_observation":
        content = item["content"]
    elif kind == "web_observation":
        lost.add("web_observation, but for its text")
        content = item.get("axtree") or item.get("html") or item.get("url") or ""
    elif kind == "image_observation":
        lost.add("image_observation")
        content = f"[image: {item['content']}]"
    elif kind == "json_observation":
        content = text_of(item["content"])
    else:
        raise Unreadable(f"'{kind}' is no class of ADP")
    source, name, call_id = item.get("source", "environment"), item.get("name"), item.get("tool_call_id")
    if call_id is not None or source == "environment":
        return new_message(role="tool", content=content, tool_call_id=call_id, name=name)
    role = "system" if name == "system" else _OURS.get(source, "user")
    return new_message(role=role, content=content, name=None if name == "system" else name)
