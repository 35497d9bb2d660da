"""Convert ATIF, the Agent Trajectory Interchange Format of Harbor's RFC 0001. Pure.

It reads versions 1.0 to 1.8 and writes 1.7, the oldest with all required fields. A step becomes a step of source
`agent`. The new messages of its prompt become steps of sources `system` and `user` before it. Tool results become the
observation of the calling step. `prompt_token_ids` are those of the whole prompt, as in the RFC.

The format has no fields for policy versions and masks by token, consent, tenant and person, group, rewards, feedback,
branches, and sampling. They are in `extra.stepstream`. Reading omits tool definitions, images, audio, reasoning effort
and notes.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
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
from stepstream.datasets.messages import arguments_object, content_of, digest, text_of, unknown_fields
from stepstream.topics.events import Message, Step, new_message, new_tool_call
from stepstream.topics.step_contexts import full_prompts

FORMAT = "atif"
_SCHEMA_VERSION = "ATIF-v1.7"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KNOWN = (
    *("schema_version", "session_id", "trajectory_id", "agent", "steps", "subagent_trajectories", "extra"),
    "final_metrics",  # sums over the steps
)


def write(episode: Episode) -> list[dict[str, Any]]:
    """Return one document."""
    first = episode.steps[0]
    steps: list[dict[str, Any]] = []
    for step, prompt in zip(episode.steps, full_prompts(episode.steps), strict=True):
        for message in step["messages"]:
            _write_message(message, steps)
        steps.append(_write_step(step, prompt))
    _write_last_results(episode.steps[-1], steps[-1])
    for number, written in enumerate(steps, 1):
        written["step_id"] = number
    document: dict[str, Any] = {
        "schema_version": _SCHEMA_VERSION,
        "session_id": episode.trajectory_id,
        "trajectory_id": episode.trajectory_id,
        "agent": {
            "name": first["agent"],
            "version": first["harness_version"] or "unknown",
            "model_name": first["model"],
        },
        "steps": steps,
    }
    document["extra"] = {KEY: build_extension(episode, _read_native(document, NEUTRAL))}
    return [document]


def read(document: Mapping[str, Any], origin: Origin) -> list[Episode]:
    """Return the episodes of a document and of its sub-agents."""
    if not str(document.get("schema_version", "")).startswith("ATIF-v1."):
        raise InvalidDocument("schema_version is not ATIF-v1.x")
    extension = (document.get("extra") or {}).get(KEY)
    episode = read_with_extension(lambda origin: _read_native(document, origin), extension, origin)
    episodes = [episode]
    callers = _sub_agent_callers(document["steps"])
    for child in document.get("subagent_trajectories") or []:
        [inner, *descendants] = read(child, origin)
        caller = callers.get(child.get("trajectory_id"))
        if caller is not None and inner.steps[0]["parent_trajectory_id"] is None:
            inner.steps = [
                {**step, "parent_trajectory_id": episode.trajectory_id, "parent_step_index": caller}
                for step in inner.steps
            ]
        episodes += [inner, *descendants]
    return episodes


def _write_message(message: Message, steps: list[dict[str, Any]]) -> None:
    if message["role"] == "tool":
        result = {"source_call_id": message["tool_call_id"], "content": message["content"]}
        before = steps[-1] if steps else {}
        calls = {call["tool_call_id"] for call in before.get("tool_calls", ())}
        if message["tool_call_id"] in calls:
            before.setdefault("observation", {"results": []})["results"].append(result)
        else:  # no step is known to have called it
            result["source_call_id"] = None
            steps.append({"source": "system", "message": "", "observation": {"results": [result]}})
    elif message["role"] == "assistant":
        steps.append(_agent_step(message) | {"is_copied_context": True})
    else:
        source = "system" if message["role"] in ("system", "developer") else "user"
        steps.append({"source": source, "message": message["content"]})


def _write_step(step: Step, prompt: list[int] | None) -> dict[str, Any]:
    document = _agent_step(step["response"]) | {
        "timestamp": (_EPOCH + timedelta(microseconds=step["occurred_at_us"])).isoformat(),
        "model_name": step["model"],
    }
    metrics: dict[str, Any] = {
        "prompt_tokens": step["usage_prompt_tokens"],
        "completion_tokens": step["usage_response_tokens"],
        "cost_usd": step["cost_usd"],
    }
    if prompt is not None and step["response_token_ids"]:
        metrics["prompt_token_ids"] = prompt
        metrics["completion_token_ids"] = step["response_token_ids"]
        metrics["logprobs"] = step["response_logprobs"]
    metrics = {name: value for name, value in metrics.items() if value is not None}
    return document | ({"metrics": metrics} if metrics else {})


def _agent_step(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"source": "agent", "message": message["content"]}
    if message["reasoning"] is not None:
        written["reasoning_content"] = message["reasoning"]
    if message["tool_calls"]:
        written["tool_calls"] = [
            {
                "tool_call_id": call["call_id"],
                "function_name": call["name"],
                "arguments": arguments_object(call["arguments"]),
            }
            for call in message["tool_calls"]
        ]
    return written


def _write_last_results(step: Step, written: dict[str, Any]) -> None:
    """Add the last step's tool results, which no later prompt contains."""
    results = [
        {"source_call_id": call["call_id"], "content": call["result"]}
        for call in step["response"]["tool_calls"]
        if call["result"] is not None
    ]
    if results:
        written["observation"] = {"results": results}


def _read_native(document: Mapping[str, Any], origin: Origin) -> Episode:
    agent = document.get("agent") or {}
    extra = document.get("extra") or {}
    omitted = unknown_fields(document, _KNOWN) | {f"extra.{name}" for name in unknown_fields(extra, (KEY,))}
    if agent.get("tool_definitions"):
        omitted.add("tool_definitions")
    turns: list[Turn] = []
    pending: list[Message] = []
    for step in document["steps"]:
        omitted |= {f"extra.{name} of steps" for name in unknown_fields(step.get("extra") or {}, ())}
        if step["source"] != "agent":
            if step.get("message") or not step.get("observation"):
                pending.append(new_message(role=step["source"], content=content_of(step.get("message"), omitted)))
        elif step.get("is_copied_context") or step.get("llm_call_count") == 0:
            pending.append(_message(step, omitted))
        else:
            turns.append(_turn(step, pending, agent, omitted))
            pending = []
        pending += _results(step, omitted)
    if turns:
        attach_last_results(turns[-1], pending, omitted)
    version = agent.get("version")
    harness = {} if version in (None, "unknown") else {"harness_version": version}
    name = document.get("trajectory_id") or document.get("session_id") or digest(document["steps"])
    return build_episode(turns, DocumentName(FORMAT, str(name)), origin, omitted=omitted, **harness)


def _message(step: Mapping[str, Any], omitted: set[str]) -> Message:
    calls = [
        new_tool_call(
            call_id=call["tool_call_id"], name=call["function_name"], arguments=text_of(call.get("arguments") or {})
        )
        for call in step.get("tool_calls") or []
    ]
    return new_message(
        role="assistant",
        content=content_of(step.get("message"), omitted),
        tool_calls=calls,
        reasoning=step.get("reasoning_content"),
    )


def _turn(step: Mapping[str, Any], pending: list[Message], agent: Mapping[str, Any], omitted: set[str]) -> Turn:
    metrics = step.get("metrics") or {}
    if step.get("reasoning_effort") is not None:
        omitted.add("reasoning_effort")
    cost = metrics.get("cost_usd", metrics.get("cost"))
    return Turn(
        messages=pending,
        response=_message(step, omitted),
        at_us=_microseconds(step.get("timestamp")),
        model=step.get("model_name") or agent.get("model_name") or "",
        agent=agent.get("name"),
        prompt_ids=metrics.get("prompt_token_ids"),
        response_ids=metrics.get("completion_token_ids"),
        logprobs=metrics.get("logprobs"),
        cost_usd=cost,
        prompt_tokens=metrics.get("prompt_tokens"),
        response_tokens=metrics.get("completion_tokens"),
    )


def _results(step: Mapping[str, Any], omitted: set[str]) -> list[Message]:
    results = (step.get("observation") or {}).get("results") or []
    return [
        new_message(
            role="tool", content=content_of(result.get("content"), omitted), tool_call_id=result.get("source_call_id")
        )
        for result in results
    ]


def _sub_agent_callers(steps: Sequence[Mapping[str, Any]]) -> dict[Any, int]:
    """Return the index of the step that called each sub-agent, by the sub-agent's trajectory id."""
    callers, index = {}, -1
    for step in steps:
        if step["source"] == "agent" and not step.get("is_copied_context") and step.get("llm_call_count") != 0:
            index += 1
        for result in (step.get("observation") or {}).get("results") or []:
            for reference in result.get("subagent_trajectory_ref") or []:
                callers[reference.get("trajectory_id")] = max(index, 0)
    return callers


def _microseconds(timestamp: str | None) -> int | None:
    if timestamp is None:
        return None
    moment = datetime.fromisoformat(timestamp)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)
