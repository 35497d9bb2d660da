"""Tokens are counted as reported, or estimated by their size; so no call is free because it reports nothing."""

import pytest

from stepstream.services.gateway.errors import NoUpstream, UpstreamDied
from stepstream.services.gateway.protocols.base import Answer, failed_answer
from stepstream.services.gateway.used_tokens import used_tokens
from stepstream.topics.events import new_message

BODY = b"x" * 41


def answer(text: str = "", **fields: object) -> Answer:
    return Answer(new_message(role="assistant", content=text), **fields)  # type: ignore[arg-type]


def test_reported_tokens_count() -> None:
    assert used_tokens(BODY, answer("hello", usage_prompt_tokens=7, usage_response_tokens=3)) == (7, 3)


def test_tokens_that_nobody_reports_are_estimated() -> None:
    branches = [answer("y" * 9)]
    assert used_tokens(BODY, answer("x" * 8, alternatives=branches)) == (11, 5)


@pytest.mark.parametrize("error", ["client_disconnected", "incomplete_stream", UpstreamDied.type])
def test_a_call_that_is_cut_off_before_its_usage_is_not_free(error: str) -> None:
    assert used_tokens(BODY, answer("x" * 8, error=error)) == (11, 2)
    assert used_tokens(BODY, failed_answer(error)) == (11, 0)


@pytest.mark.parametrize("error", [NoUpstream.type, "invalid_request_error", "http_500"])
def test_a_call_that_the_upstream_refused_is_free(error: str) -> None:
    assert used_tokens(BODY, failed_answer(error)) == (0, 0)


def test_an_error_in_the_middle_of_an_answer_is_not_free() -> None:
    assert used_tokens(BODY, answer("x" * 8, error="server_error")) == (11, 2)
