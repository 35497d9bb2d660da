"""Convert ADP, the Agent Data Protocol: a trajectory as a list of actions and observations. Pure.

A step is a run of actions: a message, or the calls of one response. The protocol requires an observation for every
action with a `tool_call_id`, and a `tool_call_id` for every call before another item. So calls without a result get an
empty observation.

The format has no fields for the model, tokens, logprobs, versions, times, consent, tenant and person, group, feedback,
branches, and arguments that are no JSON object. They are in `details.stepstream`. Reading omits images, web pages
except their text, and the rest of `details`.
"""

from collections.abc import Mapping
from typing import Any

from stepstream.datasets.episode import (
    NEUTRAL,
    DocumentName,
    Episode,
    InvalidDocument,
    Origin,
    Turn,
    attach_last_results,
    build_episode,
)
from stepstream.datasets.extension import KEY, build_extension, read_with_extension
from stepstream.datasets.messages import arguments_object, text_of, unknown_fields
from stepstream.topics.events import Message, Step, new_message, new_tool_call

FORMAT = "adp"
_SCHEMA_VERSION = "1.2.0"
_KNOWN = ("schema_version", "id", "content", "details")
_ACTIONS = ("api_action", "code_action", "message_action")
_ROLES = {"system": "system", "user": "user", "agent": "assistant", "assistant": "assistant"}


def write(episode: Episode) -> list[dict[str, Any]]:
    """Return one document."""
    content: list[dict[str, Any]] = []
    calls = _OpenCalls()
    for step in episode.steps:
        for message in step["messages"]:
            content += _observation(message, calls)
        content += calls.pop_empty_results()
        content += _actions(step, calls, episode.rewards.get(step["step_index"]))
    results = [call for call in episode.steps[-1]["response"]["tool_calls"] if call["result"] is not None]
    for call in results:
        content += [_text("environment", call["result"] or "", tool_call_id=calls.pop_id(call["call_id"]))]
    if results:
        content += calls.pop_empty_results()
    else:
        calls.remove_ids()
    document: dict[str, Any] = {
        "schema_version": _SCHEMA_VERSION,
        "id": episode.trajectory_id,
        "content": content,
        "details": {},
    }
    document["details"][KEY] = build_extension(episode, _read_native(document, NEUTRAL))
    return [document]


def read(document: Mapping[str, Any], origin: Origin) -> list[Episode]:
    """Return the episode of a document."""
    extension = (document.get("details") or {}).get(KEY)
    return [read_with_extension(lambda origin: _read_native(document, origin), extension, origin)]


class _OpenCalls:
    """The calls without an observation, with ids that are unique in the trajectory, as the protocol requires."""

    def __init__(self) -> None:
        self._open: list[tuple[str, dict[str, Any]]] = []
        self._used: set[str] = set()

    def add(self, call_id: str, action: dict[str, Any]) -> None:
        """Add a call, and set the id of its action."""
        name, number = call_id or "call", 1
        while name in self._used:
            number += 1
            name = f"{call_id or 'call'}-{number}"
        self._used.add(name)
        action["tool_call_id"] = name
        self._open.append((call_id, action))

    def pop_id(self, call_id: str | None) -> str | None:
        """Close the oldest open call of this id; return its action's id, or None if there is none."""
        for index, (open_id, action) in enumerate(self._open):
            if open_id == call_id:
                del self._open[index]
                return str(action["tool_call_id"])
        return None

    def pop_empty_results(self) -> list[dict[str, Any]]:
        """Close all open calls; return an empty observation for each, since another item follows."""
        unanswered, self._open = self._open, []
        return [_text("environment", "", tool_call_id=action["tool_call_id"]) for _, action in unanswered]

    def remove_ids(self) -> None:
        """Remove the ids of the open calls, since no item follows."""
        for _, action in self._open:
            del action["tool_call_id"]


def _observation(message: Message, calls: _OpenCalls) -> list[dict[str, Any]]:
    """Return the observations of a new message of a prompt, after empty results of the calls before it."""
    if message["role"] == "tool" and (call_id := calls.pop_id(message["tool_call_id"])) is not None:
        return [_text("environment", message["content"], message["name"], call_id)]
    before = calls.pop_empty_results()
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


def _actions(step: Step, calls: _OpenCalls, reward: float | None) -> list[dict[str, Any]]:
    response = step["response"]
    actions: list[dict[str, Any]] = []
    for call in response["tool_calls"]:
        action: dict[str, Any] = {
            "class_": "api_action",
            "function": call["name"],
            "kwargs": arguments_object(call["arguments"]),
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


def _read_native(document: Mapping[str, Any], origin: Origin) -> Episode:
    details = document.get("details") or {}
    omitted = unknown_fields(document, _KNOWN) | {f"details.{name}" for name in unknown_fields(details, (KEY,))}
    turns: list[Turn] = []
    pending: list[Message] = []
    in_run = False
    for item in document["content"]:
        kind = item["class_"]
        if kind in _ACTIONS:
            if not in_run or kind == "message_action" or item.get("description") or item.get("reasoning_content"):
                turns.append(Turn(pending, new_message(role="assistant", content=_response_text(item))))
                turns[-1].response["reasoning"] = item.get("reasoning_content")
                pending = []
            _add_call(turns[-1].response, item)
            _add_reward(turns, item)
            in_run = True
        else:
            pending.append(_message(item, omitted))
            _add_reward(turns, item)
            in_run = False
    if turns:
        attach_last_results(turns[-1], pending, omitted)
    return build_episode(turns, DocumentName(FORMAT, str(document["id"])), origin, omitted=omitted)


def _response_text(action: Mapping[str, Any]) -> str:
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


def _message(item: Mapping[str, Any], omitted: set[str]) -> Message:
    kind = item["class_"]
    if kind == "text_observation":
        content = item["content"]
    elif kind == "web_observation":
        omitted.add("web_observation, but for its text")
        content = item.get("axtree") or item.get("html") or item.get("url") or ""
    elif kind == "image_observation":
        omitted.add("image_observation")
        content = f"[image: {item['content']}]"
    elif kind == "json_observation":
        content = text_of(item["content"])
    else:
        raise InvalidDocument(f"unknown ADP class '{kind}'")
    source, name, call_id = item.get("source", "environment"), item.get("name"), item.get("tool_call_id")
    if call_id is not None or source == "environment":
        return new_message(role="tool", content=content, tool_call_id=call_id, name=name)
    role = "system" if name == "system" else _ROLES.get(source, "user")
    return new_message(role=role, content=content, name=None if name == "system" else name)
