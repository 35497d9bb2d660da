"""Values that are measured on the steps."""

from typing import Any

import pytest
from stream_records import make_steps

from stepstream.jobs.rewards.builtin_components import count_malformed_calls, is_malformed, measure
from stepstream.topics.events import new_message, new_tool_call


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ({"arguments": '{"input": "a"}'}, False),
        ({"arguments": ""}, False),
        ({"arguments": '{"input": "a"}', "error": "Timeout"}, False),
        ({"arguments": '{"input": '}, True),
        ({"arguments": '["a"]'}, True),
        ({"arguments": '{"a": ' + "[" * 100_000}, True),
        ({"arguments": "{}", "error": "invalid_arguments"}, True),
        ({"arguments": "{}", "error": "unknown_tool"}, True),
        ({"arguments": "{}", "name": " "}, True),
    ],
)
def test_a_failed_call_is_not_malformed(call: dict[str, Any], wrong: bool) -> None:
    assert is_malformed(new_tool_call(**({"call_id": "1", "name": "get"} | call))) is wrong


def test_builtin_values_of_a_step() -> None:
    [step] = make_steps("t", 1)
    assert measure("certainty", {**step, "response_logprobs": [-0.5, -1.5]}, 0) == pytest.approx(0.36787944)
    assert measure("certainty", {**step, "response_logprobs": []}, 0) is None
    assert measure("valid_calls", step, 0) == 1.0
    assert measure("malformed_calls", step, 2) == 2.0  # the environment reported them
    text: Any = {**step, "response": new_message(role="assistant", content='<tool_call>{"name": "get"</tool_call>')}
    assert count_malformed_calls(text) == 1
    assert measure("valid_calls", text, 0) == 0.0
    for name, field in (
        ("cost_usd", "cost_usd"),
        ("seconds", "duration_ms"),
    ):  # nobody earns by less than 0
        assert measure(name, {**step, field: -5.0}, 0) == 0.0  # type: ignore[arg-type, misc]
    question: Any = {**step, "response": new_message(role="assistant", content="Which one? ")}
    assert [measure("clarifying_questions", one, 0) for one in (question, step)] == [1.0, 0.0]
    assert measure("valid_calls", question, 0) is None
