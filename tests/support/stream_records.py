"""Build the events of trajectories: steps with append-only token prompts, and their outcome."""

import random
from typing import Any

from stepstream.topics.events import (
    Feedback,
    Step,
    new_feedback,
    new_governance,
    new_message,
    new_policy_span,
    new_sampling,
    new_step,
    new_tool_call,
)
from stepstream.topics.ids import derived_id, token_digest

T0_US = 1_760_000_000_000_000


def make_steps(
    trajectory_id: str,
    count: int = 3,
    *,
    seed: int = 0,
    at_us: int = T0_US,
    prompt_tokens: int = 5,
    response_tokens: int = 4,
    version: int = 3,
    **fields: Any,
) -> list[Step]:
    """Return steps of an append-only context; `fields` go into each step."""
    rng = random.Random(f"{trajectory_id}/{seed}")
    context: list[int] = []
    steps = []
    for index in range(count):
        prompt = [rng.randrange(1000) for _ in range(prompt_tokens)]
        response = [rng.randrange(1000) for _ in range(response_tokens)]
        values: dict[str, Any] = {
            "event_id": derived_id("test", trajectory_id, "step", index, seed),
            "occurred_at_us": at_us + index * 1_000_000,
            "producer": "test/1",
            "consent": "train",
            "trajectory_id": trajectory_id,
            "step_index": index,
            "agent": "agent",
            "environment": "env",
            "harness_version": "h1",
            "model": "demo",
            "fidelity": "token",
            "prompt_shared_messages": 2 * index,
            "prompt_shared_tokens": len(context),
            "prompt_shared_digest": token_digest(context) if context else None,
            "messages": [new_message(role="tool" if index else "user", content="what is next?")],
            "prompt_token_ids": prompt,
            "response": new_message(
                role="assistant",
                content="I look it up.",
                tool_calls=[new_tool_call(call_id=f"c{index}", name="get", arguments='{"input": "a"}')],
            ),
            "response_token_ids": response,
            # Exact in single precision, so that a round trip through Avro changes nothing.
            "response_logprobs": [-rng.randrange(1, 64) / 16 for _ in response],
            "policy_spans": [new_policy_span(start=0, end=len(response), model="demo", version=version)],
            "sampling": new_sampling(),
            "finish_reason": "tool_calls",
            "duration_ms": 12.5,
        }
        steps.append(new_step(**(values | fields)))
        context = [*context, *prompt, *response]
    return steps


def make_feedback(trajectory_id: str, value: float | None = 1.0, *, number: int = 0, **fields: Any) -> Feedback:
    """Return the outcome of a trajectory; the same `number` gives the same event id."""
    values: dict[str, Any] = {
        "event_id": derived_id("test", trajectory_id, "feedback", number),
        "occurred_at_us": T0_US + 60_000_000 + number,
        "producer": "verdicts/test",  # a producer `verdicts/...` may also send verifier and test feedback
        "consent": "train",
        "trajectory_id": trajectory_id,
        "name": "outcome",
        "value": value,
        "source": "environment",
    }
    return new_feedback(**(values | fields))


def make_ending(trajectory_id: str, steps: int, value: float = 1.0, **fields: Any) -> Feedback:
    """Return an outcome that also ends the trajectory, as an environment sends it."""
    ending: dict[str, Any] = {"end": "terminated", "last_step_index": steps - 1}
    return make_feedback(trajectory_id, value, **ending | fields)


def as_governed(record: Any, *, trainable: bool = True) -> Any:
    """Return the record as `govern` publishes it without a finding."""
    source = record["event_id"]
    stamp = new_governance(source_event_id=source, job="govern@1", trainable=trainable)
    return {**record, "event_id": derived_id("govern@1", source), "governed": stamp}
