"""The cost of a label: known only if that of every call is."""

from typing import Any

import pytest
from label_runs import FEEDBACK, STEPS, Run, governed
from stream_records import make_ending, make_steps

from stepstream.topics.events import new_message

FAILED = {"error": "timeout", "response": new_message(role="assistant"), "response_token_ids": []}


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ([{"cost_usd": 0.25}, {"cost_usd": 0.5}], 0.75),
        ([{"cost_usd": 0.25}, {"cost_usd": None}], None),
        ([{"cost_usd": None}, {"cost_usd": None}], None),
        ([{"cost_usd": 0.25}, {"cost_usd": None} | FAILED], 0.25),
        ([{"cost_usd": None} | FAILED, {"cost_usd": None} | FAILED], 0.0),
        ([{"cost_usd": 0.25}, {"cost_usd": None, "usage_prompt_tokens": 9} | FAILED], None),
        ([{"cost_usd": 0.25}, {"cost_usd": 0.5, "usage_prompt_tokens": 9} | FAILED], 0.75),
    ],
)
def test_the_cost_is_known_if_that_of_every_call_is(fields: list[dict[str, Any]], cost: float | None) -> None:
    run = Run()
    steps = [step | given for step, given in zip(make_steps("t", len(fields)), fields, strict=True)]
    run.feed([run.record(STEPS, governed(step)) for step in steps])
    [(_, _, label)] = run.feed([run.record(FEEDBACK, governed(make_ending("t", len(fields))))])
    assert label["cost_usd"] == cost
