"""Check that ranks which share the tokens of each forward pass compute the values and gradients of one rank."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed_models import PACKED, PADDED, model_of
from ranks import run_in_ranks
from sequence_policies import learned, mixed_rows
from sharded_policies import config_of, trained
from tiny_families import tiny_of

from stepstream.core.process import Fatal
from stepstream.learner.model.forward import forward_pass_for
from stepstream.learner.model.packing import pack
from stepstream.learner.model.pretrained import CannotTrain
from stepstream.learner.model.sequence_parallel import SequenceGroup, sequence_group


def assert_near(found: dict[str, Any], expected: dict[str, Any], part: str, tolerance: float) -> None:
    for name, value in expected[part].items():
        np.testing.assert_allclose(found[part][name], value, atol=tolerance * np.abs(value).max(), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "families", "fields"),
    [
        pytest.param(2, ["llama", "qwen3", "gpt2"], {}, id="two ranks"),
        pytest.param(2, ["qwen2"], {"activation_checkpointing": True}, id="layers recomputed"),
        pytest.param(4, ["llama"], {}, id="more ranks than key heads"),
    ],
)
def test_scores_gradients_and_a_step_are_those_of_one_rank(
    tmp_path: Path, ranks: int, families: list[str], fields: dict[str, Any]
) -> None:
    folders = [tiny_of(family, tmp_path / family) for family in families]
    expected = learned(folders, **fields)
    for of_rank in run_in_ranks(ranks, learned, folders, sequence_parallel=ranks, **fields):
        for found, alone in zip(of_rank, expected, strict=True):
            for part in ("scores", "states", "gradients"):
                assert_near(found, alone, part, 2e-5)
            assert_near(found, alone, "weights", 1e-4)


@pytest.mark.slow
def test_two_groups_of_ranks_train_as_one_rank(tmp_path: Path) -> None:
    """With hybrid sharding across the groups, a critic, and rounds in which the second group has no pack."""
    folder, fields = tiny_of("llama", tmp_path), {"advantage": "ppo_gae", "adam_epsilon": 1e-2, "max_grad_norm": 1e9}
    expected = trained(folder, None, (1, 2), fields)
    groups = {"sequence_parallel": 2, "shard_ranks": 2, "reproducible": False}
    for found in run_in_ranks(4, trained, folder, None, (1, 2), fields | groups):
        assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
        assert_near(found, expected, "weights", 1e-5)


@pytest.mark.parametrize(
    ("ranks", "size", "reason"),
    [
        (3, 2, "3 ranks: start a multiple of learner.sequence_parallel=2, or set it to 1"),
        (6, 3, "sequence_parallel=3 does not divide the model's 4 attention heads: set a divisor"),
    ],
)
def test_ranks_that_cannot_share_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, ranks: int, size: int, reason: str
) -> None:
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: ranks)
    with pytest.raises((Fatal, CannotTrain), match=reason):
        sequence_group(model_of("llama", PACKED["llama"]), config_of(reproducible=False, sequence_parallel=size))


@pytest.mark.parametrize("kind", PADDED)
def test_a_model_without_packs_is_refused_with_the_remedy(kind: str) -> None:
    with pytest.raises(CannotTrain, match=r"ranks can only share packs, and .*: set learner.sequence_parallel=1"):
        forward_pass_for(model_of(kind, PADDED[kind]), SequenceGroup(size=2))


def test_sharing_packs_promises_no_bits() -> None:
    with pytest.raises(ValueError, match="set reproducible=false, or sequence_parallel=1"):
        config_of(sequence_parallel=2)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_prediction_belongs_to_the_rank_that_has_its_input(size: int) -> None:
    shares = [SequenceGroup(rank=rank, size=size) for rank in range(size)]
    packed = shares[0].pad(pack(mixed_rows()))
    assert packed.ids.size % size == 0
    ends = shares[0].prediction_ends(packed)
    for rank, share in enumerate(shares):
        own = share.own_tokens(packed.ids.size)
        at = packed.at[ends[rank] : ends[rank + 1]]
        assert ((own.start <= at) & (at < own.stop)).all()
    assert (ends[0], ends[-1]) == (0, packed.at.size)
