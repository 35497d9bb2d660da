"""Server-sent events do not depend on how the network cuts them."""

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


def test_data_lines_are_joined_and_comments_have_none() -> None:
    events = EventParser().feed(b"data: one\ndata:two\nid: 7\n\n: keep-alive\n\ndata: [DONE]\r\n\r\nx")
    assert [event.data for event in events] == [b"one\ntwo", None, b"[DONE]"]


def test_a_line_end_of_two_bytes_counts_once() -> None:
    assert EventParser().feed(b"data: a\r\ndata: b\r\n\r\nx")[0].data == b"a\nb"
