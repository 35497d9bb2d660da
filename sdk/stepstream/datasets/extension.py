"""What a format has no place for, under the key `stepstream` of the place that it gives to extensions. Pure.

A document is first read as anybody would read it, without the extension. Where that differs from the episode that was
written, the extension says so, field by field, and nothing else: so reading our own documents gives the whole episode
back, what somebody edited in the format's own fields counts, and what others lose is known exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepstream.datasets.episode import NEUTRAL, Episode, Origin, Unreadable
from stepstream.topics.events import Message, Step, new_feedback, new_step

KEY = "stepstream"
VERSION = 1
_MISSING = object()


def extension(episode: Episode, native: Episode) -> dict[str, Any]:
    """What `native`, the document read without an extension, lacks of the episode. JSON, but for unset fields."""
    steps = [
        _step_patch(step, native.steps[place] if place < len(native.steps) else None)
        for place, step in enumerate(episode.steps)
    ]
    common = _common(steps) if len(steps) > 1 else {}
    told: dict[str, Any] = {
        "version": VERSION,
        "all": common,
        "steps": [{name: value for name, value in patch.items() if name not in common} for patch in steps],
    }
    if episode.feedback != native.feedback:
        told["feedback"] = episode.feedback
    if episode.rewards != native.rewards:
        told["rewards"] = {str(index): value for index, value in episode.rewards.items()}
    return told


def restored(native: Episode, told: Mapping[str, Any]) -> Episode:
    """The episode that was written.

    Raises:
        Unreadable: the extension is of a later version, or empty.
    """
    if told["version"] != VERSION:
        raise Unreadable(f"its extension has version {told['version']}; this package reads version {VERSION}")
    steps = [
        _patched(native.steps[place] if place < len(native.steps) else None, {**told["all"], **patch})
        for place, patch in enumerate(told["steps"])
    ]
    if not steps:
        raise Unreadable("its extension holds no steps")
    feedback = [new_feedback(**item) for item in told["feedback"]] if "feedback" in told else native.feedback
    given = told.get("rewards")
    rewards = native.rewards if given is None else {int(index): value for index, value in given.items()}
    return Episode(steps, feedback, rewards, native.lost, ours=True)


def read_both(native: Callable[[Origin], Episode], told: Mapping[str, Any] | None, origin: Origin) -> Episode:
    """Reads a document without its extension, or with it where it has one."""
    return native(origin) if told is None else restored(native(NEUTRAL), told)


def _step_patch(step: Step, native: Step | None) -> dict[str, Any]:
    if native is None:
        return {**step}
    patch: dict[str, Any] = {}
    for name, value in step.items():
        given = native.get(name, _MISSING)
        if given == value and type(given) is type(value):
            continue
        if name == "response":
            patch[name] = _message_patch(step["response"], native["response"])
        elif name == "messages" and len(step["messages"]) == len(native["messages"]):
            pairs = enumerate(zip(step["messages"], native["messages"], strict=True))
            patch[name] = {str(place): _message_patch(a, b) for place, (a, b) in pairs if a != b}
        else:
            patch[name] = value
    return patch


def _message_patch(message: Message, native: Message) -> dict[str, Any]:
    patch: dict[str, Any] = {name: value for name, value in message.items() if native.get(name) != value}
    ours, theirs = message["tool_calls"], native["tool_calls"]
    if "tool_calls" in patch and len(ours) == len(theirs):
        patch["tool_calls"] = {
            str(place): {name: value for name, value in a.items() if b.get(name) != value}
            for place, (a, b) in enumerate(zip(ours, theirs, strict=True))
            if a != b
        }
    return patch


def _patched(native: Step | None, patch: Mapping[str, Any]) -> Step:
    if native is None:
        return new_step(**patch)
    step: dict[str, Any] = {**native, **patch}
    if isinstance(patch.get("messages"), Mapping):
        step["messages"] = _by_place(native["messages"], patch["messages"], _patched_message)
    if "response" in patch:
        step["response"] = _patched_message(native["response"], patch["response"])
    return new_step(**step)


def _patched_message(native: Any, patch: Mapping[str, Any]) -> Any:
    message = {**native, **patch}
    if isinstance(patch.get("tool_calls"), Mapping):
        message["tool_calls"] = _by_place(
            native["tool_calls"], patch["tool_calls"], lambda call, part: {**call, **part}
        )
    return message


def _by_place(items: Sequence[Any], patch: Mapping[str, Any], apply: Callable[[Any, Any], Any]) -> list[Any]:
    return [apply(item, patch[str(place)]) if str(place) in patch else item for place, item in enumerate(items)]


def _common(patches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields that every step's patch sets to the same plain value."""
    first, *others = patches
    return {
        name: value
        for name, value in first.items()
        if name not in ("messages", "response") and all(other.get(name, _MISSING) == value for other in others)
    }
