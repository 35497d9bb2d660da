"""Restore the prompt that an agent sent, from the recorded one with a harness in force. Pure."""

from collections.abc import Mapping, Sequence

from stepstream.topics.events import Harness, Message


def own_prompt(messages: Sequence[Message], harness: Harness | None) -> list[Message]:
    """Return a recorded prompt without the examples of the harness that was in force.

    Its instructions remain: those of the agent are not recorded.
    """
    prompt = list(messages)
    leading = 0
    while leading < len(prompt) and prompt[leading]["role"] in ("system", "developer"):
        leading += 1
    examples = [] if harness is None else [[_text(one) for one in each["messages"]] for each in harness["examples"]]
    while found := next((one for one in examples if [*map(_text, prompt[leading : leading + len(one)])] == one), None):
        del prompt[leading : leading + len(found)]
        examples.remove(found)
    return prompt


def is_comparable(version: str, versions: Mapping[str, Harness], parent: Harness) -> bool:
    """Return True if a prompt recorded under a harness version can stand for one under the parent.

    False: another harness replaced the agent's instructions.
    """
    harness = versions.get(version)
    return harness is None or harness["instructions"] is None or harness["instructions"] == parent["instructions"]


def _text(message: Message) -> tuple[str, str, int]:
    return message["role"], message["content"], len(message["tool_calls"])
