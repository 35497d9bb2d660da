"""A redaction removes the tokens that decode to the redacted text; the governed record says what was redacted."""

import json
from typing import Any

import pytest
from stream_records import make_feedback, make_steps

from stepstream.config import ModelPriceSettings
from stepstream.core.prices import Prices
from stepstream.jobs.governance import JOB
from stepstream.jobs.governance.govern_step import call_cost, govern_feedback, govern_step
from stepstream.jobs.redaction import Redactor
from stepstream.topics.events import new_message, new_sampling_mask, new_tool_call
from stepstream.topics.ids import derived_id

REDACTOR = Redactor(b"key")
MAIL = "ada@example.org"
TOKENS = ("response_token_ids", "response_logprobs", "loss_mask", "policy_spans")


def test_a_clean_step_keeps_everything() -> None:
    step = make_steps("t")[1]
    governed, clean = govern_step(JOB, step, True, REDACTOR)
    assert clean
    stamp = {"source_event_id": step["event_id"], "job": JOB, "policy_version": 0}
    stamp |= {"redactions": {}, "trainable": True, "flags": [], "supersedes": None}
    assert governed == step | {"event_id": derived_id(JOB, step["event_id"]), "governed": stamp}


@pytest.mark.parametrize(
    "response",
    [
        new_message(role="assistant", content=f"write to {MAIL}"),
        new_message(
            role="assistant", tool_calls=[new_tool_call(call_id="1", name="m", arguments=f'{{"to":"{MAIL}"}}')]
        ),
        new_message(
            role="assistant",
            tool_calls=[new_tool_call(call_id="1", name="m", arguments="{}", result=f"sent to {MAIL}")],
        ),
    ],
)
def test_a_redacted_response_loses_its_tokens(response: Any) -> None:
    mask = new_sampling_mask(counts=[1] * 4, token_ids=[7] * 4)
    step = make_steps("t", response=response, loss_mask=[True] * 4, sampling_mask=mask)[1]
    governed, clean = govern_step(JOB, step, True, REDACTOR)
    assert not clean
    assert MAIL not in json.dumps(governed)
    assert all(governed[field] == [] for field in TOKENS)  # type: ignore[literal-required]
    assert governed["sampling_mask"] is None
    assert governed["prompt_token_ids"] == step["prompt_token_ids"]
    assert governed["fidelity"] == "text"
    assert governed["governed"] is not None
    assert governed["governed"]["redactions"] == {"email": 1}
    assert governed["governed"]["flags"] == ["redacted:email"]
    assert not governed["governed"]["trainable"]


def test_a_redacted_prompt_loses_all_tokens_and_its_digest() -> None:
    step = make_steps("t", messages=[new_message(role="user", content=f"I am {MAIL}")])[1]
    governed, clean = govern_step(JOB, step, True, REDACTOR)
    assert not clean
    assert MAIL not in json.dumps(governed)
    assert all(governed[field] == [] for field in (*TOKENS, "prompt_token_ids"))  # type: ignore[literal-required]
    assert governed["prompt_shared_digest"] is None
    assert governed["prompt_shared_tokens"] == 0


def test_feedback_is_redacted_in_its_texts() -> None:
    feedback = make_feedback("t", comment=f"ask {MAIL}", demonstration=f"sk-{'a1' * 10}", category="bad")
    governed = govern_feedback(JOB, feedback, REDACTOR)
    assert governed["governed"] is not None
    assert governed["governed"]["redactions"] == {"email": 1, "api_key": 1}
    assert MAIL not in json.dumps(governed)
    assert governed["value"] == 1.0


def test_a_calls_cost_is_that_of_the_counted_tokens() -> None:
    prices = Prices([ModelPriceSettings(model="m-*", prompt_usd=2.0, response_usd=10.0)])
    counts = {"usage_prompt_tokens": 1000, "usage_response_tokens": 100}
    text: Any = make_steps("t", 1, model="m-1", fidelity="text", **counts)[0]
    assert call_cost(text, prices) == pytest.approx(0.003)
    assert call_cost(text | {"usage_response_tokens": None}, prices) is None
    assert call_cost(text | {"model": "other"}, prices) is None
    tokens: Any = make_steps("t", 2, model="m-1")[1]
    prompt = tokens["prompt_shared_tokens"] + len(tokens["prompt_token_ids"])
    expected = (2 * prompt + 10 * len(tokens["response_token_ids"])) / 1_000_000
    assert call_cost(tokens, prices) == pytest.approx(expected)
