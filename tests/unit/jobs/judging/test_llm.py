"""Calls to the model that judges: retries, skipped steps and cancellation."""

import threading
from contextlib import closing
from typing import Any

import pytest
from scripted_judge import reply, serve_replies
from waiting import TIMEOUT_S

from stepstream.config import JudgeSettings
from stepstream.jobs.judging.llm import JudgeApi, JudgeClient
from stepstream.jobs.judging.next_state import RUBRIC
from stepstream.jobs.runtime.retry import Cancelled


def client(url: str, cancelled: bool = False, **fields: Any) -> JudgeClient:
    values = {"url": url, "model": "m", "api_key": "k", "per_minute": 1e6, "patience_s": 5.0} | fields
    return JudgeClient(JudgeSettings(**values), lambda: cancelled)


def test_a_question_is_sent_with_the_rubric_at_temperature_0() -> None:
    with serve_replies((200, reply('{"score": 0.5}'))) as (url, seen):
        assert client(url).score_all(["{}"]) == [0.5]
    [(path, authorization, body)] = seen
    assert (path, authorization) == ("/v1/chat/completions", "Bearer k")
    assert (body["model"], body["temperature"], body["messages"][0]["content"]) == ("m", 0, RUBRIC)


def test_a_failed_call_is_retried_and_an_invalid_answer_is_not() -> None:
    with serve_replies((503, b""), (200, reply('{"score": 1}'))) as (url, seen):
        assert client(url).score_all(["{}"]) == [1.0]
    assert len(seen) == 2
    with serve_replies((200, reply("I think it went well."))) as (url, seen):
        assert client(url).score_all(["{}"]) == [None]
    assert len(seen) == 1


def test_a_redirect_is_a_failure_and_gets_no_key() -> None:
    with serve_replies((200, b"")) as (other, leaked), serve_replies((302, other.encode())) as (url, _):
        assert client(url, patience_s=0.1).score_all(["{}"]) == [None]
    assert not leaked


def test_steps_are_skipped_while_the_judge_is_unavailable() -> None:
    with serve_replies((500, b""), (500, b""), (200, reply('{"score": 1}'))) as (url, seen):
        asks = client(url, patience_s=0.1)
        assert [asks.score_all(["{}"]) for _ in range(3)] == [[None], [None], [1.0]]
    assert len(seen) == 3


def test_waiting_for_the_judge_can_be_cancelled() -> None:
    with pytest.raises(Cancelled):
        client("http://127.0.0.1:9", cancelled=True).score_all(["{}"])


def test_questions_are_asked_at_the_same_time_and_answered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)

    def complete(_: JudgeApi, body: dict[str, Any]) -> bytes:
        together.wait(TIMEOUT_S)  # passes only once three calls are under way
        return reply(f'{{"score": {body["messages"][-1]["content"]}}}')

    monkeypatch.setattr(JudgeApi, "complete", complete)
    with closing(client("http://127.0.0.1:9", parallel=3)) as asks:
        assert asks.score_all(["0.25", "1", "0.5", "0.75", "0", "1"]) == [0.25, 1.0, 0.5, 0.75, 0.0, 1.0]
