"""Check the arrays of sampling masks against lists of ids."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepstream.learner.data.kept_ids import KeptIds

SETS = st.lists(st.lists(st.integers(0, 5), max_size=3, unique=True).map(sorted), max_size=8)


def kept_ids(sets: list[list[int]]) -> KeptIds:
    ids = [token for each in sets for token in each]
    return KeptIds(np.array([len(each) for each in sets], np.int64), np.array(ids, np.int32))


def sets_of(kept: KeptIds) -> list[list[int]]:
    ends = kept.counts.cumsum()
    assert kept.ids.size == kept.counts.sum()
    return [kept.ids[end - count : end].tolist() for end, count in zip(ends, kept.counts, strict=True)]


@given(SETS, st.data())
def test_some_tokens_keep_their_ids(sets: list[list[int]], data: st.DataObject) -> None:
    some = data.draw(st.lists(st.sampled_from(range(len(sets))))) if sets else []
    assert sets_of(kept_ids(sets).take(np.array(some, np.int64))) == [sets[number] for number in some]


@given(st.lists(st.tuples(SETS, st.booleans())))
def test_joined_parts_keep_their_ids(parts: list[tuple[list[list[int]], bool]]) -> None:
    joined = KeptIds.join([(kept_ids(sets) if known else None, len(sets)) for sets, known in parts])
    if joined is None:
        assert not any(known for _, known in parts)
    else:
        assert sets_of(joined) == [each if known else [] for sets, known in parts for each in sets]


@given(SETS, st.data())
def test_ids_without_the_chosen_one_are_found(sets: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, 5), min_size=len(sets), max_size=len(sets)))
    found = kept_ids(sets).lack(np.array(chosen, np.int64)).tolist()
    assert found == [bool(each) and token not in each for each, token in zip(sets, chosen, strict=True)]


@given(SETS)
def test_equal_ids_have_equal_labels(sets: list[list[int]]) -> None:
    labels = kept_ids(sets).labels().tolist()
    assert len(labels) == len(sets)
    pairs = list(zip(labels, sets, strict=True))
    assert all((a == b) == (one == other) for a, one in pairs for b, other in pairs)
