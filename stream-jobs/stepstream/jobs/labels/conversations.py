"""Lays a trajectory's text over conversations, where not all its token ids are known. Pure.

What `joining.py` does for tokens: each message once, in as few conversations as the shared contexts allow, with the
responses that may be trained on marked in the first that holds them. Preferences and imitation need no more; whoever
trains on it tokenises it. What redaction touched, in a response or before it, is context alone: it would teach to say
pseudonyms. So is a response behind messages that are not all there, one of which the mask leaves tokens out, and one
that came as a span, which may have been cut.
"""

from collections.abc import Sequence

from stepstream.topics.events import Conversation, ConversationSpan, Step, new_conversation, new_conversation_span
from stepstream.topics.step_contexts import conversations, shared_step


def converse(steps: Sequence[Step]) -> list[Conversation]:
    """The conversations that hold a response to train on.

    Args:
        steps: the trajectory's steps in order of their index; gaps are allowed.
    """
    place_of = {step["step_index"]: _place(step) for step in steps if _may_train(step)}
    offers = _offers(steps)
    found: list[Conversation] = []
    for said in conversations(steps):
        spans: dict[str | None, list[ConversationSpan]] = {}
        for place, (_, index) in enumerate(said):
            if index is not None and place_of.get(index) == place:
                del place_of[index]
                spans.setdefault(offers[index], []).append(new_conversation_span(message=place, step_index=index))
        for offer, own in spans.items():
            messages = [message for message, _ in said[: own[-1]["message"] + 1]]
            found.append(new_conversation(messages=messages, spans=own, tool_definitions=offer))
    return found


def _may_train(step: Step) -> bool:
    governed, response = step["governed"], step["response"]
    # That tokens are not known is told by `govern` as a flag too.
    clean = governed is not None and all(flag.startswith("fidelity:") for flag in governed["flags"])
    says = bool(response["content"] or response["tool_calls"])
    return clean and says and step["consent"] == "train" and step["fidelity"] != "span" and all(step["loss_mask"])


def _place(step: Step) -> int:
    """Where its response stands in a conversation that holds all that came before it; -1: nowhere."""
    if step["prompt_shared_tokens"] and not step["prompt_shared_messages"]:
        return -1  # what is shared is known as tokens alone
    return step["prompt_shared_messages"] + len(step["messages"])


def _offers(steps: Sequence[Step]) -> dict[int, str | None]:
    """Tools that the model was offered, by step: as told, else those of the step that it continues."""
    offers: dict[int, str | None] = {}
    for step in steps:
        before = shared_step(step)
        inherited = None if before is None else offers.get(before)
        told = step["tool_definitions"]
        offers[step["step_index"]] = inherited if told is None else told
    return offers
