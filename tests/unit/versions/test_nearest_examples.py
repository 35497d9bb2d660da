"""Test the choice of examples by similarity of text."""

from hypothesis import given
from hypothesis import strategies as st

from stepstream.versions.nearest_examples import ExampleIndex, index_of, terms

TEXTS = ("Cancel my order 17", "Where is my parcel?", "Cancelling orders takes how long", "")


def test_the_most_similar_text_is_last() -> None:
    assert ExampleIndex(TEXTS).nearest("Please cancel the order 18", 2) == [2, 0]
    assert ExampleIndex(TEXTS).nearest("parcel where", 1) == [1]


def test_terms_that_all_texts_share_count_least() -> None:
    preamble = "You are given a question. Answer with one word. Question: "
    index = ExampleIndex([preamble + text for text in ("what is the colour of snow", "how many legs has a spider")])
    assert index.nearest(preamble + "legs of a spider?", 1) == [1]


def test_without_a_common_term_the_earlier_texts_are_chosen() -> None:
    assert ExampleIndex(TEXTS).nearest("xyz", 2) == [1, 0]
    assert ExampleIndex([]).nearest("xyz", 2) == []


@given(
    st.lists(st.text(max_size=60), min_size=1, max_size=12, unique_by=lambda text: frozenset(terms(text))),
    st.integers(1, 14),
)
def test_each_text_is_nearest_to_itself_and_chosen_once(texts: list[str], k: int) -> None:
    index = index_of(tuple(texts))
    for i, text in enumerate(texts):
        chosen = index.nearest(text, k)
        assert len(set(chosen)) == len(chosen) == min(k, len(texts))
        if terms(text):
            assert chosen[-1] == i
