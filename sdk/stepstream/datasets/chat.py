"""OpenAI chat JSONL: `{"messages": [...]}` as fine-tuning takes it, and its preference form. Pure.

One line is one conversation. A trajectory whose context branched or was compacted becomes several, which hold the
shared beginning each; `metadata` tells that they belong together. Messages of the assistant that the agent did not
sample, as examples in its prompt, have `weight` 0, so that nobody trains on them.

No place in the format: tokens, logprobs, versions, times, rewards, feedback, what a tool call gave back beside its
message. They are in `metadata.stepstream`.
"""

from collections.abc import Mapping
from typing import Any

from stepstream.datasets.episode import (
    NEUTRAL,
    Episode,
    Named,
    Origin,
    Turn,
    build,
)
from stepstream.datasets.extension import KEY, extension, read_both
from stepstream.datasets.messages import digest_of, from_chat, others, text_of, to_chat
from stepstream.topics.events import Message
from stepstream.topics.step_contexts import conversations

FORMAT = "chat"
_KNOWN = ("messages", "tools", "id", "metadata")


def write(episode: Episode) -> list[dict[str, Any]]:
    """The lines, most often one."""
    documents: list[dict[str, Any]] = []
    for number, said in enumerate(conversations(episode.steps)):
        messages = []
        for message, step_index in said:
            chat = to_chat(message)
            if step_index is not None:
                chat["role"] = "assistant"
            elif message["role"] == "assistant":
                chat["weight"] = 0
            messages.append(chat)
        name = f"{episode.trajectory_id}#{number}" if number else episode.trajectory_id
        document: dict[str, Any] = {"messages": messages, "metadata": {"id": name}}
        here = {step_index for _, step_index in said}
        part = Episode(
            [step for step in episode.steps if step["step_index"] in here],
            [] if number else episode.feedback,
            {index: value for index, value in episode.rewards.items() if index in here},
        )
        document["metadata"][KEY] = extension(part, _conversation(document, NEUTRAL))
        documents.append(document)
    return documents


def read(document: Mapping[str, Any], origin: Origin) -> list[Episode]:
    """The episode of a line; two, in one group, of a line of preferences."""
    if "preferred_output" in document:
        return _preference(document, origin)
    told = (document.get("metadata") or {}).get(KEY)
    return [read_both(lambda origin: _conversation(document, origin), told, origin)]


def _conversation(document: Mapping[str, Any], origin: Origin) -> Episode:
    metadata = document.get("metadata") or {}
    lost = others(document, _KNOWN) | {f"metadata.{name}" for name in others(metadata, ("id", KEY))}
    turns = _turns(document["messages"], lost)
    name = document.get("id") or metadata.get("id") or digest_of(document["messages"])
    return _offered(build(turns, Named(FORMAT, str(name)), origin, lost=lost), document)


def _offered(episode: Episode, document: Mapping[str, Any]) -> Episode:
    """The episode with the tools that the agent was offered, which later steps inherit."""
    if document.get("tools"):
        episode.steps[0]["tool_definitions"] = text_of(document["tools"])
    return episode


def _turns(messages: list[Mapping[str, Any]], lost: set[str]) -> list[Turn]:
    """A turn for each answer of the assistant that counts."""
    turns: list[Turn] = []
    pending: list[Message] = []
    for raw in messages:
        message = from_chat(raw, lost)
        if message["role"] == "assistant" and raw.get("weight", 1) != 0:
            turns.append(Turn(pending, message))
            pending = []
        else:
            pending.append(message)
    if turns:
        close(turns[-1], pending, lost)
    return turns


def close(last: Turn, pending: list[Message], lost: set[str]) -> None:
    """Puts what came after the last answer where a record has a place for it: results of tools, to their calls."""
    calls = {call["call_id"]: call for call in last.response["tool_calls"]}
    for message in pending:
        call = calls.get(message["tool_call_id"] or "")
        if message["role"] == "tool" and call is not None and call["result"] is None:
            call["result"] = message["content"]
        else:
            lost.add("messages after the last answer")


def _preference(document: Mapping[str, Any], origin: Origin) -> list[Episode]:
    """The two answers to one prompt as two attempts in one group, of which the preferred one had success."""
    given, name = document["input"], str(document.get("id") or digest_of(document))
    episodes = []
    for which, value in (("preferred", 1.0), ("non_preferred", 0.0)):
        lost: set[str] = set()
        prompt = [{**message, "weight": 0} for message in given["messages"]]
        turns = _turns([*prompt, *document[f"{which}_output"]], lost)
        named = Named(FORMAT, f"{name}/{which}")
        group = Named(FORMAT, name).trajectory_id(origin)
        episode = build(turns, named, origin, lost=lost, outcome=(value, which), group_id=group, task_id=group)
        episodes.append(_offered(episode, given))
    return episodes
