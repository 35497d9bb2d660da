"""What a verification reads of a trajectory: its cases. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import orjson

from stepstream.jobs.labels.tool_results import attach
from stepstream.jobs.verifiers.base import Case, Turn
from stepstream.jobs.verifiers.regex import compiled
from stepstream.jobs.verifiers.specification import Declared, Verification
from stepstream.topics.events import Message, Step, ToolCall
from stepstream.topics.step_contexts import shared_step


def cases(verification: Verification, steps: Sequence[Step]) -> list[Case | None] | None:
    """What is to be judged of a trajectory; an entry None: what is read is not there, which is a fault of the agent's.

    Args:
        verification: what reads it; it applies.
        steps: the trajectory's steps in order of their index, at least one.

    Returns:
        The cases, one for a trajectory or one a step; None: nothing is known of its task.
    """
    declared, first = verification.declared, steps[0]
    known = {} if verification.expected is None else verification.expected.get(first["task_id"])
    if known is None:
        return None
    whole = verification.verifier.reads_trajectory
    observed = observations(declared, steps)
    if declared.level == "trajectory":
        observed = observed[-1:]
    if whole:
        observed = [(steps[-1]["step_index"], "")]
    made: list[Case | None] = [
        Case(
            trajectory_id=first["trajectory_id"],
            task_id=first["task_id"],
            observed=text,
            expected=known,
            asked=asked(steps),
            turns=turns(steps) if whole else (),
            step_index=index if declared.level == "step" else None,
            read_in=None if whole else index,
        )
        for index, text in observed
        if text is not None
    ]
    return made or ([None] if declared.level == "trajectory" else [])


def observations(declared: Declared, steps: Sequence[Step]) -> list[tuple[int, str | None]]:
    """What a verification reads, with the step that it is in; None: it is there, but the part that is wanted is not."""
    found: list[tuple[int, str | None]] = []
    if declared.reads in ("response", "final_response"):
        read = steps[-1:] if declared.reads == "final_response" else steps
        said = ((step["step_index"], step["response"]["content"]) for step in read)
        found = [(index, text) for index, text in said if text.strip()]
    else:
        field = "arguments" if declared.reads == "tool_arguments" else "result"
        for step, calls in zip(steps, attach(steps), strict=True):
            for call in calls:
                if fnmatchcase(call["name"], declared.tool):
                    found.append((step["step_index"], _told(call, field, declared.pointer)))
    last = dict(found)  # of several calls in one step, the last
    return [(index, _extracted(text, declared.extract)) for index, text in last.items()]


def asked(steps: Sequence[Step]) -> str:
    """What the user said in the first prompt."""
    return "\n\n".join(m["content"] for m in steps[0]["messages"] if m["role"] == "user").strip()


def turns(steps: Sequence[Step]) -> list[Turn]:
    """Each step with its whole conversation, put together along the steps that prompts repeat."""
    contexts: dict[int, list[Message]] = {}
    for step in steps:
        before = shared_step(step)
        shared = [] if before is None else contexts.get(before, [])[: step["prompt_shared_messages"]]
        contexts[step["step_index"]] = [*shared, *step["messages"], step["response"]]
    return [Turn(index, conversation) for index, conversation in contexts.items()]


def _told(call: ToolCall, field: str, pointer: str) -> str | None:
    text: Any = call["arguments"] if field == "arguments" else call["result"]
    if text is None or not pointer:
        return text if isinstance(text, str) else None
    try:
        value = orjson.loads(text)
        for part in pointer[1:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError):
        return None
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _extracted(text: str | None, pattern: str) -> str | None:
    if text is None or not pattern:
        return text
    found = [match.group(1) for match in compiled(pattern).finditer(text)]
    return found[-1] if found else None
