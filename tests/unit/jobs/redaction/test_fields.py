"""Every field with content is redacted, ids only by the form of values; redacted ids still join."""

import json
import uuid
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_records import make_feedback, make_steps

from stepstream.jobs.governance.govern_step import govern_feedback, govern_step
from stepstream.jobs.redaction import Redactor
from stepstream.topics.events import new_message, new_policy_span, new_tool_call

JOB = "govern@1"
REDACTOR = Redactor(b"key")
GITHUB = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
VALUES = {
    "github_token": GITHUB,
    "email": "ada@example.org",
    "card": "4111111111111111",
    "iban": "DE89370400440532013000",
    "aws_key": "AKIAIOSFODNN7EXAMPLE",
}
STEP_IDS = ("producer", "task_id", "group_id", "agent", "environment", "harness_version", "split", "model")
FEEDBACK_IDS = ("producer", "name", "source", "tool_call_id")


@pytest.mark.parametrize("rule", VALUES)
def test_every_field_of_a_step_is_redacted(rule: str) -> None:
    value = VALUES[rule]
    fields: dict[str, Any] = dict.fromkeys(STEP_IDS, f"run {value}")
    call = new_tool_call(call_id=value, name=value, arguments="{}")
    [step] = make_steps(
        "t",
        1,
        messages=[new_message(role="tool", content="", tool_call_id=value, name=value), new_message(role=value)],
        response=new_message(role="assistant", tool_calls=[call]),
        policy_spans=[new_policy_span(start=0, end=4, model=f"run {value}", version=1)],
        finish_reason=f"refused {value}",
        **fields,
    )
    governed, _ = govern_step(JOB, step, True, REDACTOR)
    assert value not in json.dumps(governed)
    stand_in = f"run {REDACTOR.pseudonym(rule, value)}"
    assert {governed[name] for name in STEP_IDS} == {stand_in}  # type: ignore[literal-required]
    [answer, _], [made] = governed["messages"], governed["response"]["tool_calls"]
    assert answer["tool_call_id"] == made["call_id"], "the result still finds its call"


@pytest.mark.parametrize("rule", VALUES)
def test_every_field_of_feedback_is_redacted(rule: str) -> None:
    value = VALUES[rule]
    fields: dict[str, Any] = dict.fromkeys((*FEEDBACK_IDS, "category", "comment", "demonstration"), value)
    governed = govern_feedback(JOB, make_feedback("t", **fields), REDACTOR)
    assert value not in json.dumps(governed)


def test_a_redacted_id_removes_no_tokens() -> None:
    [step] = make_steps("t", 1, task_id=f"mail of {VALUES['email']}", finish_reason="stop")
    step["policy_spans"] = [{**span, "model": GITHUB} for span in step["policy_spans"]]
    governed, clean = govern_step(JOB, step, True, REDACTOR)
    assert clean
    assert governed["response_token_ids"] == step["response_token_ids"]
    assert step["policy_spans"][0]["model"] == GITHUB, "what came in is not changed"
    assert governed["policy_spans"][0]["model"] == REDACTOR.pseudonym("github_token", GITHUB)


def test_cached_redactions_are_counted_again() -> None:
    for _ in range(2):
        governed, _ = govern_step(JOB, make_steps("t", 1, agent=GITHUB)[0], True, REDACTOR)
        assert governed["governed"] is not None
        assert governed["governed"]["redactions"] == {"github_token": 1}


@given(st.uuids(), st.sampled_from(["{}", "task-{}", "call_{}", "chatcmpl-tool-{}", "{}/3", "env:{}@2"]), st.booleans())
def test_generated_ids_are_not_redacted(some: uuid.UUID, form: str, plain: bool) -> None:
    text = form.format(some.hex if plain else some)
    assert REDACTOR.redact_id(text, Counter()) == text


@pytest.mark.parametrize(
    "text",
    [
        "call_Ab3dEf6hIj9kLmN0pQrStUvW",
        "toolu_01A09q90qw90lq917835lq9",
        "gpt-4.1-2025-04-14",
        "Qwen/Qwen3-0.6B",
        "claude-sonnet-4-5-20250929",
        "stepstream/0.1.0",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "1760000100000000",
        "2026-11-22T03:45:52Z",
        "swe-bench/django__django-11099",
        "9f86d081884c7d65",
    ],
)
def test_ordinary_names_and_ids_are_not_redacted(text: str) -> None:
    assert REDACTOR.redact_id(text, Counter()) == text
