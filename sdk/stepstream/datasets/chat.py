"""Convert OpenAI chat JSONL: the fine-tuning form `{"messages": [...]}`, and its preference form. Pure.

One line is one conversation. A trajectory with a branched or compacted context becomes several lines, each with the
shared beginning; `metadata` links them. Messages of the assistant that the agent did not sample, as examples in its
prompt, have `weight` 0, so that fine-tuning skips them.

The format has no fields for tokens, logprobs, versions, times, rewards, feedback, and results of tool calls other than
messages. They are in `metadata.stepstream`.
"""

from collections.abc import Mapping
from typing import Any

from stepstream.datasets.episode import (
    NEUTRAL,
    DocumentName,
    Episode,
    Origin,
    Turn,
    attach_last_results,
    build_episode,
)
from stepstream.datasets.extension import KEY, build_extension, read_with_extension
from stepstream.datasets.messages import digest, from_chat, text_of, to_chat, unknown_fields
from stepstream.topics.events import Message
from stepstream.topics.step_contexts import conversations

FORMAT = "chat"
_KNOWN = ("messages", "tools", "id", "metadata")


def write(episode: Episode) -> list[dict[str, Any]]:
    """Return the lines, usually one."""
    documents: list[dict[str, Any]] = []
    for number, conversation in enumerate(conversations(episode.steps)):
        messages = []
        for message, step_index in conversation:
            chat = to_chat(message)
            if step_index is not None:
                chat["role"] = "assistant"
            elif message["role"] == "assistant":
                chat["weight"] = 0
            messages.append(chat)
        name = f"{episode.trajectory_id}#{number}" if number else episode.trajectory_id
        document: dict[str, Any] = {"messages": messages, "metadata": {"id": name}}
        indices = {step_index for _, step_index in conversation}
        part = Episode(
            [step for step in episode.steps if step["step_index"] in indices],
            [] if number else episode.feedback,
            {index: value for index, value in episode.rewards.items() if index in indices},
        )
        document["metadata"][KEY] = build_extension(part, _read_conversation(document, NEUTRAL))
        documents.append(document)
    return documents


def read(document: Mapping[str, Any], origin: Origin) -> list[Episode]:
    """Return the episode of a line; for a line of preferences, two of one group."""
    if "preferred_output" in document:
        return _read_preference(document, origin)
    extension = (document.get("metadata") or {}).get(KEY)
    return [read_with_extension(lambda origin: _read_conversation(document, origin), extension, origin)]


def _read_conversation(document: Mapping[str, Any], origin: Origin) -> Episode:
    metadata = document.get("metadata") or {}
    omitted = unknown_fields(document, _KNOWN) | {f"metadata.{name}" for name in unknown_fields(metadata, ("id", KEY))}
    turns = _turns(document["messages"], omitted)
    name = document.get("id") or metadata.get("id") or digest(document["messages"])
    return _with_tools(build_episode(turns, DocumentName(FORMAT, str(name)), origin, omitted=omitted), document)


def _read_preference(document: Mapping[str, Any], origin: Origin) -> list[Episode]:
    """Return the two responses to one prompt as two attempts of one group; the preferred one has outcome 1."""
    given, name = document["input"], str(document.get("id") or digest(document))
    episodes = []
    for kind, value in (("preferred", 1.0), ("non_preferred", 0.0)):
        omitted: set[str] = set()
        prompt = [{**message, "weight": 0} for message in given["messages"]]
        turns = _turns([*prompt, *document[f"{kind}_output"]], omitted)
        group = DocumentName(FORMAT, name).trajectory_id(origin)
        episode = build_episode(
            turns,
            DocumentName(FORMAT, f"{name}/{kind}"),
            origin,
            omitted=omitted,
            outcome=(value, kind),
            group_id=group,
            task_id=group,
        )
        episodes.append(_with_tools(episode, given))
    return episodes


def _turns(messages: list[Mapping[str, Any]], omitted: set[str]) -> list[Turn]:
    """Return a turn for each message of the assistant whose weight is not 0."""
    turns: list[Turn] = []
    pending: list[Message] = []
    for raw in messages:
        message = from_chat(raw, omitted)
        if message["role"] == "assistant" and raw.get("weight", 1) != 0:
            turns.append(Turn(pending, message))
            pending = []
        else:
            pending.append(message)
    if turns:
        attach_last_results(turns[-1], pending, omitted)
    return turns


def _with_tools(episode: Episode, document: Mapping[str, Any]) -> Episode:
    """Set the offered tools on the first step; later steps inherit them."""
    if document.get("tools"):
        episode.steps[0]["tool_definitions"] = text_of(document["tools"])
    return episode
