"""Where a response ends is the same however it comes."""

from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.inference.stop_strings import TextUntil

TEXTS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def told(pieces: list[str], stops: list[str]) -> str:
    until = TextUntil(stops)
    return "".join([*(until.add(piece, last=False) for piece in pieces), until.add("", last=True)])


@given(st.lists(TEXTS, max_size=5), STOPS)
def test_pieces_say_what_the_whole_says(pieces: list[str], stops: list[str]) -> None:
    assert told(pieces, stops) == TextUntil(stops).add("".join(pieces), last=True)


@given(TEXTS, STOPS)
def test_the_text_ends_where_a_stop_string_is_whole_first(text: str, stops: list[str]) -> None:
    said = TextUntil(stops).add(text, last=True)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert said == text
        return
    assert not any(stop in said for stop in stops)
    assert text.startswith(said)
    assert any(text[: ends[0]] == said + stop for stop in stops)
