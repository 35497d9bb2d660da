"""Build trajectories as a fleet writes them."""

import random
from typing import Any

from stepstream.topics import events
from stepstream.topics.ids import derived_id, new_event_id, now_us, token_digest

STEPS_OF_ONE = 4
GROUP_SIZE = 8
TEXT = "The order was sent on Monday; the parcel is at the sorting centre and should arrive within two days. " * 3


def trajectory(
    name: str, rng: random.Random, steps_of_one: int = STEPS_OF_ONE
) -> tuple[list[events.Step], events.Feedback]:
    """Return steps of about 1.5 kB, with 90 new prompt and 110 response tokens each, and the outcome."""
    context: list[int] = []
    steps = []
    for index in range(steps_of_one):
        prompt = [rng.randrange(50_000) for _ in range(90)]
        response = [rng.randrange(50_000) for _ in range(110)]
        call = events.new_tool_call(call_id=f"call_{index}", name="lookup", arguments='{"input": "order 4711"}')
        steps.append(
            events.new_step(
                event_id=new_event_id(),
                occurred_at_us=now_us(),
                producer="bench/1",
                consent="train",
                trajectory_id=name,
                step_index=index,
                task_id="task",
                group_id=f"{name.split('-')[0]}-{int(name.split('-')[1]) // GROUP_SIZE}",
                agent="bench",
                environment="bench",
                harness_version="h1",
                model="demo",
                fidelity="token",
                prompt_shared_messages=2 * index,
                prompt_shared_tokens=len(context),
                prompt_shared_digest=token_digest(context) if context else None,
                messages=[events.new_message(role="tool" if index else "user", content=TEXT[:120])],
                prompt_token_ids=prompt,
                response=events.new_message(role="assistant", content=TEXT[:80], tool_calls=[call]),
                response_token_ids=response,
                response_logprobs=[-rng.random() for _ in response],
                policy_spans=[events.new_policy_span(start=0, end=len(response), model="demo", version=7)],
                sampling=events.new_sampling(),
                finish_reason="tool_calls",
                duration_ms=40.0,
            )
        )
        context += prompt + response
    ending = events.new_feedback(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        producer="bench/1",
        consent="train",
        trajectory_id=name,
        name="outcome",
        value=float(rng.random() < 0.5),
        source="environment",
        end="terminated",
        last_step_index=steps_of_one - 1,
    )
    return steps, ending


def governed(record: Any) -> Any:
    """Return the record as `govern` publishes it."""
    stamp = events.new_governance(source_event_id=record["event_id"], job="govern@1", trainable=True)
    return {**record, "event_id": derived_id("govern@1", record["event_id"]), "governed": stamp}
