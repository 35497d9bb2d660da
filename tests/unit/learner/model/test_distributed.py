"""Check that ranks compute the same bits as one process."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import tiny_model
from rank_training import KINDS, learn_all
from ranks import run_in_ranks

from stepstream.core.process import Fatal
from stepstream.learner.model.checkpoint import describe
from stepstream.learner.model.distributed import Ranks, TreeSum, join_ranks


def files(folder: Path) -> dict[str, str]:
    return {file["path"]: file["sha256"] for file in describe(folder)}


@pytest.mark.slow
def test_one_two_and_four_ranks_come_to_the_same_bits_and_continue_from_each_other(tmp_path: Path) -> None:
    for kind in KINDS:
        tiny_model(tmp_path / kind / "0")
    first = learn_all(1, tmp_path, "0", "1")
    assert run_in_ranks(2, learn_all, 1, tmp_path, "0", "1 by two") == [first] * 2
    second = learn_all(2, tmp_path, "1", "2")
    assert run_in_ranks(4, learn_all, 2, tmp_path, "1 by two", "2 by four") == [second] * 4
    for kind in KINDS:
        assert files(tmp_path / kind / "1 by two") == files(tmp_path / kind / "1")
        assert files(tmp_path / kind / "2 by four") == files(tmp_path / kind / "2")


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.integers(0, 3))
def test_a_tree_sum_has_the_same_bits_for_any_split_of_the_parts(parts: list[float], log_ranks: int) -> None:
    alone, shared, size = TreeSum(), TreeSum(), 2**log_ranks
    for part in parts:
        alone.add([torch.tensor([part])])
    for first in range(0, len(parts), size):
        together = TreeSum()
        for part in parts[first : first + size]:
            together.add([torch.tensor([part])])
        shared.add(together.total(), len(parts[first : first + size]))
    assert torch.equal(alone.total()[0], shared.total()[0])
    assert alone.total() == []


@given(st.integers(0, 30), st.integers(0, 3))
def test_every_batch_goes_to_one_rank_and_no_rank_misses_a_round(batches: int, log_ranks: int) -> None:
    size = 2**log_ranks
    dealt = [list(Ranks(rank, size).rounds(batches)) for rank in range(size)]
    assert len({len(rounds) for rounds in dealt}) == 1
    done = [batch for rank, rounds in enumerate(dealt) for batch, present in rounds if rank < present]
    assert sorted(done) == list(range(batches))


def test_ranks_must_be_a_power_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(Fatal, match="power of two"), join_ranks():
        pass
