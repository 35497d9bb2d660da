"""Check that packs contain every sequence, with each common prefix once."""

from dataclasses import replace
from itertools import chain
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepstream.learner.data.kept_ids import KeptIds
from stepstream.learner.data.sequences import TokenSequence, joined_kept
from stepstream.learner.model import packing
from stepstream.learner.model.packing import microbatches, pack, pack_batches


def tokens(ids: list[int]) -> TokenSequence:
    """A sequence of which every token but the first is trained."""
    nothing: Any = np.empty(0)
    return TokenSequence(np.array(ids), np.arange(1, len(ids)), nothing, nothing, nothing)


# Few different tokens and a stem: they share beginnings, branch within branches, repeat and contain each other.
ROWS = st.lists(
    st.tuples(st.integers(0, 20), st.lists(st.integers(0, 2), min_size=2, max_size=12)).map(
        lambda drawn: tokens([7] * drawn[0] + drawn[1])
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS, st.sampled_from([1, 8]))
def test_every_trained_token_attends_exactly_to_its_prefix(rows: list[TokenSequence], least: int) -> None:
    with patch.object(packing, "_MIN_SHARED", least):
        packed = pack(rows)
    keys, sizes = packed.paths()
    paths = np.split(keys, np.cumsum(sizes)[:-1])
    seen = {}
    for (start, end, last), path in zip(packed.runs.tolist(), paths, strict=True):
        assert start < end <= last <= packed.ids.size
        assert path[-1] == end - 1
        for place in range(start, end):
            seen[place] = path[: path.size - (end - 1 - place)]
            assert packed.positions[place] == seen[place].size - 1
    assert sorted(seen) == list(range(packed.ids.size))
    predictions = iter(packed.of.tolist())
    for row in rows:
        for position in row.trained:
            prediction = next(predictions)
            assert packed.ids[seen[int(packed.at[prediction])]].tolist() == row.ids[:position].tolist()
            assert packed.targets[prediction] == row.ids[position]


@given(ROWS, st.data())
def test_each_prediction_has_the_temperature_and_ids_of_its_tokens(
    rows: list[TokenSequence], data: st.DataObject
) -> None:
    levels = st.sampled_from([np.float32(1.0), np.float32(0.7), np.float32(0.1)])
    kept_ids = st.lists(st.sampled_from([(), (0, 1), (0, 1, 2)]), min_size=40, max_size=40) | st.none()
    heated = []
    for row in rows:
        drawn = data.draw(kept_ids)
        if drawn is not None:
            ids = drawn[: row.trained.size]
            counts, flat = np.array([len(each) for each in ids]), np.array([*chain(*ids)], np.int32)
            row = replace(row, kept=KeptIds(counts, flat))
        some = data.draw(st.lists(levels, min_size=row.trained.size, max_size=row.trained.size) | st.none())
        heated.append(replace(row, temperatures=None if some is None else np.array(some, np.float32)))
    packed, plain = pack(heated), pack(rows)
    assert (packed.temperatures is None) == all(row.temperatures is None for row in heated)
    assert packed.ids.tolist() == plain.ids.tolist()
    assert packed.at[packed.of].tolist() == plain.at[plain.of].tolist()
    assert packed.targets[packed.of].tolist() == plain.targets[plain.of].tolist()
    kept = joined_kept(heated)
    assert (packed.kept is None) == (kept is None)
    labels = [0] * packed.at.size
    if packed.kept is not None and kept is not None:
        assert packed.kept.counts.size == packed.at.size
        found = packed.kept.take(packed.of)
        assert (found.counts.tolist(), found.ids.tolist()) == (kept.counts.tolist(), kept.ids.tolist())
        labels = packed.kept.labels().tolist()
    if packed.temperatures is not None:
        assert packed.temperatures.size == packed.at.size
        expected = [np.ones(r.trained.size, np.float32) if r.temperatures is None else r.temperatures for r in heated]
        assert packed.temperatures[packed.of].tolist() == np.concatenate(expected).tolist()
        keys = list(zip(packed.at.tolist(), packed.targets.tolist(), packed.temperatures.tolist(), labels, strict=True))
        assert len(set(keys)) == len(keys)


@given(ROWS)
def test_descendants_follow_a_run_and_nothing_else_does(rows: list[TokenSequence]) -> None:
    packed = pack(rows)
    keys, sizes = packed.paths()
    paths = [set(path.tolist()) for path in np.split(keys, np.cumsum(sizes)[:-1])]
    for start, end, last in packed.runs.tolist():
        for (other, *_), path in zip(packed.runs.tolist(), paths, strict=True):
            assert (start in path) == (other == start or end <= other < last)


@given(ROWS)
def test_no_shared_prefix_is_stored_twice(rows: list[TokenSequence]) -> None:
    beginnings = {tuple(row.ids[:end].tolist()) for row in rows for end in range(1, row.ids.size)}
    with patch.object(packing, "_MIN_SHARED", 1):
        packed = pack(rows)
    assert packed.ids.size == len(beginnings)
    assert np.unique(np.stack([packed.at, packed.targets]), axis=1).shape[1] == packed.at.size


def test_short_prefixes_are_not_shared() -> None:
    short, long = [3] * 7, [4] * 8
    packed = pack([tokens([*short, 1, 2]), tokens([*short, 2, 2]), tokens([*long, 1, 2]), tokens([*long, 2, 2])])
    assert packed.ids.size == 8 + 8 + 9 + 1
    assert len(packed.runs) == 5


@given(ROWS, st.integers(1, 120))
def test_every_sequence_is_in_one_pack_within_bounds(rows: list[TokenSequence], most: int) -> None:
    batches = pack_batches(rows, most)
    assert sorted(index for batch in batches for index in batch) == list(range(len(rows)))
    assert all(len(batch) == 1 or pack([rows[i] for i in batch]).ids.size <= most for batch in batches)


@given(st.lists(st.integers(1, 90)), st.integers(1, 400))
def test_every_sequence_is_in_one_microbatch_within_bounds(lengths: list[int], most: int) -> None:
    batches = microbatches(lengths, most)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= most for batch in batches)
