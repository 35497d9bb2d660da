"""Test that a stop string cuts the text at the same place for any division into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.inference.stop_strings import StopTruncator

TEXTS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def cut(pieces: list[str], stops: list[str]) -> str:
    truncator = StopTruncator(stops)
    return "".join([*(truncator.add(piece, last=False) for piece in pieces), truncator.add("", last=True)])


@given(st.lists(TEXTS, max_size=5), STOPS)
def test_pieces_give_the_text_of_the_whole(pieces: list[str], stops: list[str]) -> None:
    assert cut(pieces, stops) == StopTruncator(stops).add("".join(pieces), last=True)


@given(TEXTS, STOPS)
def test_the_text_ends_before_the_first_complete_stop_string(text: str, stops: list[str]) -> None:
    shortened = StopTruncator(stops).add(text, last=True)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert shortened == text
        return
    assert not any(stop in shortened for stop in stops)
    assert text.startswith(shortened)
    assert any(text[: ends[0]] == shortened + stop for stop in stops)
