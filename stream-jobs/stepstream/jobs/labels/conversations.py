"""Join a trajectory's text into conversations if not all of its token ids are known. Pure.

This is `sequences.py` for text: each message once, in as few conversations as the shared contexts allow. Trainable
responses are marked in the first conversation that contains them. Preference and imitation learners tokenise them.

These responses are context only:

- redaction touched the response or its prompt: training would teach pseudonyms;
- an earlier message is missing;
- the loss mask excludes some of its tokens;
- it came as a span, which may be truncated.
"""

from collections.abc import Sequence

from stepstream.topics.events import Conversation, ConversationSpan, Step, new_conversation, new_conversation_span
from stepstream.topics.step_contexts import conversations, shared_step


def build_conversations(steps: Sequence[Step]) -> list[Conversation]:
    """Return the conversations that contain a trainable response.

    Args:
        steps: the trajectory's steps in order of their index; gaps are allowed.
    """
    position_of = {step["step_index"]: _response_position(step) for step in steps if _may_train(step)}
    tools_of = _tool_definitions(steps)
    joined: list[Conversation] = []
    for tagged in conversations(steps):
        spans: dict[str | None, list[ConversationSpan]] = {}
        for position, (_, index) in enumerate(tagged):
            if index is not None and position_of.get(index) == position:
                del position_of[index]
                spans.setdefault(tools_of[index], []).append(new_conversation_span(message=position, step_index=index))
        for tools, own in spans.items():
            messages = [message for message, _ in tagged[: own[-1]["message"] + 1]]
            joined.append(new_conversation(messages=messages, spans=own, tool_definitions=tools))
    return joined


def _may_train(step: Step) -> bool:
    governed, response = step["governed"], step["response"]
    # `govern` also flags missing tokens, which do not matter here.
    clean = governed is not None and all(flag.startswith("fidelity:") for flag in governed["flags"])
    has_content = bool(response["content"] or response["tool_calls"])
    return (
        clean and has_content and step["consent"] == "train" and step["fidelity"] != "span" and all(step["loss_mask"])
    )


def _response_position(step: Step) -> int:
    """Return the index of its response in a conversation with its whole prompt; -1: unknown."""
    if step["prompt_shared_tokens"] and not step["prompt_shared_messages"]:
        return -1  # the shared part is known as tokens only
    return step["prompt_shared_messages"] + len(step["messages"])


def _tool_definitions(steps: Sequence[Step]) -> dict[int, str | None]:
    """Return the tools offered at each step; a step without its own inherits those of the step that it continues."""
    offers: dict[int, str | None] = {}
    for step in steps:
        before = shared_step(step)
        inherited = None if before is None else offers.get(before)
        own = step["tool_definitions"]
        offers[step["step_index"]] = inherited if own is None else own
    return offers
