"""Select the cases of a verification from a trajectory. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import orjson

from stepstream.jobs.labels.tool_results import attach_tool_results
from stepstream.jobs.redaction.tenant_patterns import compile_pattern
from stepstream.jobs.verifiers.base import Case, Turn
from stepstream.jobs.verifiers.specification import Verification, VerificationConfig
from stepstream.topics.events import Message, Step, ToolCall
from stepstream.topics.step_contexts import shared_step


def cases_of(verification: Verification, steps: Sequence[Step]) -> list[Case | None] | None:
    """Return the cases of a trajectory, or None if its task is unknown.

    An entry None: the text to read is missing, which is the agent's fault.

    Args:
        verification: a verification that applies to the trajectory.
        steps: the trajectory's steps in order of their index, at least one.

    Returns:
        One case for a trajectory, or one for each step.
    """
    config, first = verification.config, steps[0]
    expected = {} if verification.expected is None else verification.expected.get(first["task_id"])
    if expected is None:
        return None
    reads_whole = verification.verifier.reads_trajectory
    observed = observations(config, steps)
    if config.level == "trajectory":
        observed = observed[-1:]
    if reads_whole:
        observed = [(steps[-1]["step_index"], "")]
    cases: list[Case | None] = [
        Case(
            trajectory_id=first["trajectory_id"],
            task_id=first["task_id"],
            observed=text,
            expected=expected,
            request=first_request(steps),
            turns=turns(steps) if reads_whole else (),
            step_index=index if config.level == "step" else None,
            observed_step_index=None if reads_whole else index,
        )
        for index, text in observed
        if text is not None
    ]
    return cases or ([None] if config.level == "trajectory" else [])


def observations(config: VerificationConfig, steps: Sequence[Step]) -> list[tuple[int, str | None]]:
    """Return the texts that a verification reads, each with its step index; None: the text lacks the requested part."""
    texts: list[tuple[int, str | None]] = []
    if config.reads in ("response", "final_response"):
        read_steps = steps[-1:] if config.reads == "final_response" else steps
        responses = ((step["step_index"], step["response"]["content"]) for step in read_steps)
        texts = [(index, text) for index, text in responses if text.strip()]
    else:
        field = "arguments" if config.reads == "tool_arguments" else "result"
        for step, calls in zip(steps, attach_tool_results(steps), strict=True):
            for call in calls:
                if fnmatchcase(call["name"], config.tool):
                    texts.append((step["step_index"], _tool_text(call, field, config.pointer)))
    last = dict(texts)  # the last of several calls in one step
    return [(index, _extract(text, config.extract)) for index, text in last.items()]


def first_request(steps: Sequence[Step]) -> str:
    """Return the user's text in the first prompt."""
    return "\n\n".join(m["content"] for m in steps[0]["messages"] if m["role"] == "user").strip()


def turns(steps: Sequence[Step]) -> list[Turn]:
    """Return each step with its whole conversation, joined along the shared steps."""
    contexts: dict[int, list[Message]] = {}
    for step in steps:
        before = shared_step(step)
        shared = [] if before is None else contexts.get(before, [])[: step["prompt_shared_messages"]]
        contexts[step["step_index"]] = [*shared, *step["messages"], step["response"]]
    return [Turn(index, conversation) for index, conversation in contexts.items()]


def _tool_text(call: ToolCall, field: str, pointer: str) -> str | None:
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


def _extract(text: str | None, pattern: str) -> str | None:
    if text is None or not pattern:
        return text
    texts = [match.group(1) for match in compile_pattern(pattern).finditer(text)]
    return texts[-1] if texts else None
