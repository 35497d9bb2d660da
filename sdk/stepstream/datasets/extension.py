"""Write and apply the extension: the fields that a format lacks, under its key `stepstream`. Pure.

A document is first read by its format's own fields (the native episode). The extension holds exactly the fields in
which the written episode differs from that. So reading restores the whole episode, edits of the format's own fields
take effect, and the extension lists what other readers lose.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepstream.datasets.episode import NEUTRAL, Episode, InvalidDocument, Origin
from stepstream.topics.events import Message, Step, new_feedback, new_step

KEY = "stepstream"
VERSION = 1
_MISSING = object()


def build_extension(episode: Episode, native: Episode) -> dict[str, Any]:
    """Return the fields in which the episode differs from `native`, as JSON."""
    patches = [
        _step_patch(step, native.steps[index] if index < len(native.steps) else None)
        for index, step in enumerate(episode.steps)
    ]
    common = _common_fields(patches) if len(patches) > 1 else {}
    extension: dict[str, Any] = {
        "version": VERSION,
        "all": common,
        "steps": [{name: value for name, value in patch.items() if name not in common} for patch in patches],
    }
    if episode.feedback != native.feedback:
        extension["feedback"] = episode.feedback
    if episode.rewards != native.rewards:
        extension["rewards"] = {str(index): value for index, value in episode.rewards.items()}
    return extension


def _step_patch(step: Step, native: Step | None) -> dict[str, Any]:
    if native is None:
        return {**step}
    patch: dict[str, Any] = {}
    for name, value in step.items():
        native_value = native.get(name, _MISSING)
        if native_value == value and type(native_value) is type(value):
            continue
        if name == "response":
            patch[name] = _message_patch(step["response"], native["response"])
        elif name == "messages" and len(step["messages"]) == len(native["messages"]):
            pairs = enumerate(zip(step["messages"], native["messages"], strict=True))
            patch[name] = {str(index): _message_patch(a, b) for index, (a, b) in pairs if a != b}
        else:
            patch[name] = value
    return patch


def _message_patch(message: Message, native: Message) -> dict[str, Any]:
    patch: dict[str, Any] = {name: value for name, value in message.items() if native.get(name) != value}
    calls, native_calls = message["tool_calls"], native["tool_calls"]
    if "tool_calls" in patch and len(calls) == len(native_calls):
        patch["tool_calls"] = {
            str(index): {name: value for name, value in a.items() if b.get(name) != value}
            for index, (a, b) in enumerate(zip(calls, native_calls, strict=True))
            if a != b
        }
    return patch


def _common_fields(patches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that every step's patch sets to the same value."""
    first, *others = patches
    return {
        name: value
        for name, value in first.items()
        if name not in ("messages", "response") and all(other.get(name, _MISSING) == value for other in others)
    }


def read_with_extension(
    read_native: Callable[[Origin], Episode], extension: Mapping[str, Any] | None, origin: Origin
) -> Episode:
    """Read a document; apply its extension if it has one (then `origin` has no effect)."""
    return read_native(origin) if extension is None else restore(read_native(NEUTRAL), extension)


def restore(native: Episode, extension: Mapping[str, Any]) -> Episode:
    """Return the episode that was written.

    Raises:
        InvalidDocument: the extension has another version, or no steps.
    """
    if extension["version"] != VERSION:
        raise InvalidDocument(f"the extension has version {extension['version']}, this package reads version {VERSION}")
    steps = [
        _restore_step(native.steps[index] if index < len(native.steps) else None, {**extension["all"], **patch})
        for index, patch in enumerate(extension["steps"])
    ]
    if not steps:
        raise InvalidDocument("the extension contains no steps")
    feedback = native.feedback
    if "feedback" in extension:
        feedback = [new_feedback(**item) for item in extension["feedback"]]
    values = extension.get("rewards")
    rewards = native.rewards if values is None else {int(index): value for index, value in values.items()}
    return Episode(steps, feedback, rewards, native.omitted, has_extension=True)


def _restore_step(native: Step | None, patch: Mapping[str, Any]) -> Step:
    if native is None:
        return new_step(**patch)
    step: dict[str, Any] = {**native, **patch}
    if isinstance(patch.get("messages"), Mapping):
        step["messages"] = _patch_items(native["messages"], patch["messages"], _restore_message)
    if "response" in patch:
        step["response"] = _restore_message(native["response"], patch["response"])
    return new_step(**step)


def _restore_message(native: Any, patch: Mapping[str, Any]) -> Any:
    message = {**native, **patch}
    if isinstance(patch.get("tool_calls"), Mapping):
        message["tool_calls"] = _patch_items(
            native["tool_calls"], patch["tool_calls"], lambda call, fields: {**call, **fields}
        )
    return message


def _patch_items(items: Sequence[Any], patches: Mapping[str, Any], apply: Callable[[Any, Any], Any]) -> list[Any]:
    return [apply(item, patches[str(index)]) if str(index) in patches else item for index, item in enumerate(items)]
