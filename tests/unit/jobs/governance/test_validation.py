"""Each rule of the protocol is checked."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_records import T0_US, make_feedback, make_steps

from stepstream.jobs.governance.validation import check_envelope, check_feedback, check_step
from stepstream.jobs.runtime.record import InvalidRecord
from stepstream.topics.events import new_message, new_policy_span, new_sampling_mask, new_tool_call

SPAN: dict[str, Any] = {"model": "demo", "version": 3}
SLOW = new_tool_call(call_id="c", name="get", arguments="{}", duration_ms=math.nan)


def test_valid_events_pass() -> None:
    for step in make_steps("t"):
        check_step(step)
        check_envelope(step, b"t", T0_US + 10_000_000, 0)
    check_step(make_steps("t", sampling_mask=new_sampling_mask(counts=[0, 2, 0, 1], token_ids=[7, 9, 3]))[0])
    check_feedback(make_feedback("t", end="terminated", last_step_index=2))
    check_step(make_steps("t", prompt_tokens=0, response_tokens=0, policy_spans=[])[0])
    check_step(make_steps("t", parent_trajectory_id="p")[0])  # the parent's step may be unknown


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"step_index": -1}, "step_index"),
        ({"response_logprobs": [-1.0]}, "logprobs"),
        ({"response_logprobs": [-1.0, -1.0, 0.5, -1.0]}, "positive"),
        ({"response_logprobs": [-1.0, math.nan, -1.0, -1.0]}, "finite"),
        ({"response_logprobs": [-1.0, -math.inf, -1.0, -1.0]}, "finite"),
        ({"loss_mask": [True]}, "loss_mask"),
        ({"policy_spans": []}, "policy_spans"),
        ({"policy_spans": [new_policy_span(start=0, end=3, **SPAN)]}, "cover"),
        (
            {"policy_spans": [new_policy_span(start=0, end=1, **SPAN), new_policy_span(start=2, end=4, **SPAN)]},
            "gaps",
        ),
        (
            {"policy_spans": [new_policy_span(start=2, end=4, **SPAN), new_policy_span(start=0, end=2, **SPAN)]},
            "order",
        ),
        ({"policy_spans": [new_policy_span(start=0, end=4, model="demo", version=-1)]}, "version"),
        ({"sampling_mask": new_sampling_mask(counts=[1], token_ids=[7])}, "sampling_mask of 1"),
        ({"sampling_mask": new_sampling_mask(counts=[0, 2, 0, 1], token_ids=[7, 9])}, "counts of sampling_mask"),
        ({"sampling_mask": new_sampling_mask(counts=[0, 2, 0, -1], token_ids=[7])}, "negative"),
        ({"sampling_mask": new_sampling_mask(counts=[0, 1, 0, 0], token_ids=[-7])}, "negative"),
        ({"prompt_token_ids": [-1]}, "negative"),
        ({"response_token_ids": [1, 2, 3, -4]}, "negative"),
        ({"prompt_shared_tokens": 3, "prompt_shared_digest": "0" * 64}, "first step"),
        ({"prompt_shared_tokens": -3}, "negative"),
        ({"prompt_shared_digest": "0" * 64}, "prompt_shared_digest"),
        ({"fidelity": "text"}, "no tokens"),
        ({"parent_step_index": 1}, "parent"),
        ({"cost_usd": math.nan}, "cost_usd is not finite"),
        ({"cost_usd": -1.7e308}, "cost_usd"),
        ({"duration_ms": math.inf}, "duration_ms is not finite"),
        ({"response": new_message(role="assistant", tool_calls=[SLOW])}, "of a tool call is not finite"),
    ],
)
def test_an_invalid_step_is_rejected(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason) as refused:
        check_step(make_steps("t")[0] | fields)
    assert refused.value.error == "invalid"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": ""}, "name"),
        ({"value": math.inf}, "finite"),
        ({"value": 1e300}, "value is not finite, or beyond 1e"),
        ({"step_index": -1}, "step_index"),
        ({"last_step_index": 2}, "last_step_index"),
        ({"end": "terminated", "last_step_index": -1}, "last_step_index"),
        ({"retracts": "that one"}, "retracts"),
    ],
)
def test_invalid_feedback_is_rejected(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        check_feedback(make_feedback("t") | fields)


@pytest.mark.parametrize(
    ("fields", "key", "error"),
    [
        ({}, b"u", "wrong_key"),
        ({}, None, "wrong_key"),
        ({"trajectory_id": ""}, b"", "invalid"),
        ({"trajectory_id": "x" * 600}, b"x" * 600, "invalid"),
        ({"event_id": "17"}, b"t", "invalid"),
        ({"occurred_at_us": T0_US // 1_000_000}, b"t", "invalid"),
        ({"occurred_at_us": T0_US + 3_600_000_000}, b"t", "invalid"),
        ({"governed": {"job": "govern@1"}}, b"t", "invalid"),
    ],
)
def test_an_invalid_envelope_is_rejected(fields: dict[str, Any], key: bytes | None, error: str) -> None:
    with pytest.raises(InvalidRecord) as refused:
        check_envelope(make_steps("t")[0] | fields, key, T0_US + 1_000_000, 300_000_000)
    assert refused.value.error == error


@given(st.text(max_size=50))
def test_a_reason_never_contains_the_content(secret: str) -> None:
    step = make_steps("t", event_id=f"secret-{secret}")[0]
    with pytest.raises(InvalidRecord) as refused:
        check_envelope(step, b"t", T0_US + 1_000_000, 0)
    assert "secret-" not in refused.value.reason
