"""Test the names by which two records of one model call are recognised."""

from stepstream.topics.call_names import is_response_name, response_name, span_name


def test_a_name_says_whether_a_response_or_a_span_has_it() -> None:
    assert (response_name("chatcmpl-1"), span_name("a", "b")) == ("response:chatcmpl-1", "span:a/b")
    assert is_response_name(response_name("chatcmpl-1"))
    assert not is_response_name(span_name("response:", "b"))
