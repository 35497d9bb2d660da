from hypothesis import given
from hypothesis import strategies as st

from stepstream.learner.model.packing import microbatches


@given(st.lists(st.integers(1, 90)), st.integers(1, 400))
def test_every_sequence_is_in_one_microbatch_within_bounds(lengths: list[int], most: int) -> None:
    batches = microbatches(lengths, most)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= most for batch in batches)
