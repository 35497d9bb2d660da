"""Server-sent events do not depend on how the network cuts them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.http.sse import EventParser

STREAMS = st.lists(
    st.sampled_from([b"data: ", b"data:", b"a", b"b\xc3\xa9", b": note", b"\n", b"\r", b"\r\n", b"id: 1"])
)


@given(STREAMS, st.lists(st.integers(0, 40)))
def test_chunks_change_no_event_and_lose_no_byte(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    parser = EventParser()
    at_once = parser.feed(stream)
    chunked = EventParser()
    events = []
    start = 0
    for end in [*sorted(cut for cut in cuts if cut < len(stream)), len(stream)]:
        events += chunked.feed(stream[start:end])
        start = end
    assert events == at_once
    assert b"".join(event.raw for event in events) + chunked.rest() == stream


@given(STREAMS)
def test_a_stream_of_single_bytes_gives_the_same_events(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    parser, at_once = EventParser(), EventParser()
    assert [event for byte in stream for event in parser.feed(bytes([byte]))] == at_once.feed(stream)
    assert parser.rest() == at_once.rest()


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_an_endless_event_costs_each_chunk_only_its_own_bytes(line_end: bytes) -> None:
    chunk = b"data: " + 1024 * b"x" + line_end
    parser = EventParser()
    started = time.process_time()
    for _ in range(8_000):
        assert parser.feed(chunk) == []
    assert time.process_time() - started < 5.0  # 8 MB; copying all of it at each chunk takes far longer
    [event] = parser.feed(line_end + b"data: x" + line_end)
    assert len(event.raw) == 8_000 * len(chunk) + len(line_end)


def test_data_lines_are_joined_and_comments_have_none() -> None:
    events = EventParser().feed(b"data: one\ndata:two\nid: 7\n\n: keep-alive\n\ndata: [DONE]\r\n\r\nx")
    assert [event.data for event in events] == [b"one\ntwo", None, b"[DONE]"]


def test_a_line_end_of_two_bytes_counts_once() -> None:
    assert EventParser().feed(b"data: a\r\ndata: b\r\n\r\nx")[0].data == b"a\nb"
