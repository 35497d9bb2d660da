"""Generate trajectories of every shape that the schemas allow, for properties of formats."""

from typing import Any

from hypothesis import strategies as st

from stepstream.datasets import Episode
from stepstream.topics import events
from stepstream.topics.ids import derived_id

_texts = st.text(max_size=8)
_names = st.one_of(st.none(), _texts)
_arguments = st.one_of(st.sampled_from(["{}", '{"a": 1}', '{"a":[null]}', "[1]", "not JSON", ""]), _texts)
_numbers = st.one_of(st.none(), st.floats(0, 1e6, width=32))
_counts = st.one_of(st.none(), st.integers(0, 2**40))
_consents = st.sampled_from(["train", "analyse", "none"])
_ends = st.sampled_from(["open", "terminated", "truncated"])
_tokens = st.lists(st.integers(0, 2**31 - 1), max_size=4)

_calls = st.builds(
    events.new_tool_call,
    call_id=st.sampled_from(["", "c1", "c2"]),
    name=_texts,
    arguments=_arguments,
    result=_names,
    error=_names,
    duration_ms=_numbers,
)


def _messages(*roles: str) -> Any:
    return st.builds(
        events.new_message,
        role=st.sampled_from(roles),
        content=_texts,
        tool_calls=st.lists(_calls, max_size=2),
        tool_call_id=st.sampled_from([None, "c1", "c2", ""]),
        name=_names,
        reasoning=_names,
    )


@st.composite
def _steps(draw: Any, trajectory_id: str, index: int) -> events.Step:
    response = draw(_tokens)
    version = draw(st.integers(0, 9))
    return events.new_step(
        event_id=derived_id("test", trajectory_id, index),
        occurred_at_us=draw(st.integers(946_684_800_000_000, 2_000_000_000_000_000)),
        producer=draw(_texts),
        tenant=draw(_texts),
        consent=draw(_consents),
        user=draw(_names),
        trajectory_id=trajectory_id,
        step_index=index,
        task_id=draw(_texts),
        group_id=draw(_names),
        agent=draw(_texts),
        environment=draw(_texts),
        harness_version=draw(st.sampled_from(["", "unknown", "h1"])),
        split=draw(st.sampled_from(["train", "eval"])),
        model=draw(_texts),
        fidelity=draw(st.sampled_from(["token", "text", "span"])),
        prompt_shared_messages=draw(st.integers(0, 5)),
        prompt_shared_step=draw(st.one_of(st.none(), st.integers(0, 3))),
        prompt_shared_tokens=draw(st.integers(0, 5)),
        prompt_shared_digest=draw(_names),
        messages=draw(st.lists(_messages("system", "user", "assistant", "tool", "critic"), max_size=3)),
        prompt_token_ids=draw(_tokens),
        response=draw(_messages("assistant", "model")),
        response_token_ids=response,
        response_logprobs=[draw(st.floats(-100, 0, width=32)) for _ in response],
        loss_mask=draw(st.sampled_from([[], [True] * len(response), [False] * len(response)])),
        policy_spans=[events.new_policy_span(start=0, end=len(response), model="m", version=version)],
        sampling=events.new_sampling(temperature=draw(st.floats(0, 2)), max_tokens=draw(st.sampled_from([None, 7]))),
        finish_reason=draw(_texts),
        end=draw(_ends),
        error=draw(_names),
        duration_ms=draw(_numbers),
        cost_usd=draw(_numbers),
        usage_prompt_tokens=draw(_counts),
        usage_response_tokens=draw(_counts),
    )


@st.composite
def episodes(draw: Any) -> Episode:
    """Return an episode of one to four steps: with trees, missing shared prefixes and unusual roles."""
    trajectory_id = draw(st.text(min_size=1, max_size=8))
    indexes = sorted(draw(st.sets(st.integers(0, 5), min_size=1, max_size=4)))
    steps = [draw(_steps(trajectory_id, index)) for index in indexes]
    feedback = [
        events.new_feedback(
            event_id=derived_id("test", trajectory_id, "feedback", number),
            occurred_at_us=number,
            producer="test",
            consent=draw(_consents),
            trajectory_id=trajectory_id,
            name=draw(_texts),
            source=draw(_texts),
            value=draw(st.one_of(st.none(), st.floats(-1, 1))),
            comment=draw(_names),
            end=draw(_ends),
        )
        for number in range(draw(st.integers(0, 2)))
    ]
    rewards = {index: draw(st.floats(-1, 1)) for index in indexes} if draw(st.booleans()) else {}
    return Episode(steps, feedback, rewards)
