"""Check that the index chooses as a choice over all candidates does, and looks at few of them."""

from dataclasses import replace
from typing import Any

import pytest
from buffers import SIZE, buffer, fold, log_of
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import group_of

from stepstream.learner.data import replay_buffer, sampler
from stepstream.learner.data.ready_index import ReadyIndex
from stepstream.learner.data.sampler import Candidate, GroupSampler

SAMPLERS = st.builds(
    GroupSampler,
    sampling=st.sampled_from(["freshest", "weighted"]),
    tenant_share=st.sampled_from([0.25, 0.5, 1.0]),
)
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 8), st.booleans(), st.integers(0, 2), st.integers(0, 3), st.sampled_from("ab"), st.integers(1, 3)
    ),
    max_size=30,
)


@given(SAMPLERS, CHANGES, st.integers(1, 5))
def test_the_index_chooses_as_a_scan(choice: GroupSampler, changes: list[Any], count: int) -> None:
    index, held = ReadyIndex(choice), dict[str, Candidate]()
    for number, (group, is_removed, uses, lag, tenant, update) in enumerate(changes):
        name = f"g{group}"
        if is_removed:
            index.remove(name)
            held.pop(name, None)
        else:
            held[name] = Candidate(name, number, uses, lag, tenant, size_bytes=group)
            index.put(held[name])
        assert index.choose(count, update) == choice.choose(list(held.values()), count, update)
        assert index.size_bytes == sum(each.size_bytes for each in held.values())
        assert len(index) == len(held)


def test_a_choice_computes_no_group_again(monkeypatch: pytest.MonkeyPatch) -> None:
    described = []

    def candidate_of(group_id: str, *arguments: Any) -> Candidate:
        described.append(group_id)
        return original(group_id, *arguments)

    original = sampler.candidate_of
    monkeypatch.setattr(replay_buffer, "candidate_of", candidate_of)
    records = [record for n in range(20) for record in group_of(f"g{n}", SIZE)]
    held = fold(buffer(reuse=2), log_of(*records))
    assert held.has(4)
    assert held.has(4)
    assert len(described) == 20
    assert len(held.take(4) or []) == 4
    assert held.has(4)
    assert len(described) == 24
    held.advance(1)
    assert held.has(4)
    assert len(described) == 44


def test_the_buffer_counts_the_bytes_of_ready_groups() -> None:
    records = group_of("g", SIZE)
    attempts = log_of(*records)
    held = fold(buffer(), attempts[:-1])
    assert held.ready_bytes() == 0
    fold(held, attempts[-1:])
    assert held.ready_bytes() == sum(each.size_bytes for each in attempts) > 0
    held.take(1)
    assert held.ready_bytes() == 0
    assert replace(attempts[0], sequences=()).size_bytes == 0
