"""Calls to the model that judges: retries, skipped steps and cancellation."""

from typing import Any

import pytest
from scripted_judge import reply, serve_replies

from stepstream.config import JudgeSettings
from stepstream.jobs.judging.llm import JudgeClient
from stepstream.jobs.judging.next_state import RUBRIC
from stepstream.jobs.runtime.retry import Cancelled


def client(url: str, cancelled: bool = False, **fields: Any) -> JudgeClient:
    values = {"url": url, "model": "m", "api_key": "k", "per_minute": 1e6, "patience_s": 5.0} | fields
    return JudgeClient(JudgeSettings(**values), lambda: cancelled)


def test_a_question_is_sent_with_the_rubric_at_temperature_0() -> None:
    with serve_replies((200, reply('{"score": 0.5}'))) as (url, seen):
        assert client(url).score("{}") == 0.5
    [(path, authorization, body)] = seen
    assert (path, authorization) == ("/v1/chat/completions", "Bearer k")
    assert (body["model"], body["temperature"], body["messages"][0]["content"]) == ("m", 0, RUBRIC)


def test_a_failed_call_is_retried_and_an_invalid_answer_is_not() -> None:
    with serve_replies((503, b""), (200, reply('{"score": 1}'))) as (url, seen):
        assert client(url).score("{}") == 1.0
    assert len(seen) == 2
    with serve_replies((200, reply("I think it went well."))) as (url, seen):
        assert client(url).score("{}") is None
    assert len(seen) == 1


def test_steps_are_skipped_while_the_judge_is_unavailable() -> None:
    with serve_replies((500, b""), (500, b""), (200, reply('{"score": 1}'))) as (url, seen):
        asks = client(url, patience_s=0.1)
        assert [asks.score("{}"), asks.score("{}"), asks.score("{}")] == [None, None, 1.0]
    assert len(seen) == 3


def test_waiting_for_the_judge_can_be_cancelled() -> None:
    with pytest.raises(Cancelled):
        client("http://127.0.0.1:9", cancelled=True).score("{}")
