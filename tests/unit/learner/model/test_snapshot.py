"""Check versions that are written under other layouts of the training, and after faults of a rank's disk."""

from pathlib import Path

import numpy as np
import pytest
import torch
from labelled_records import tiny_model
from ranks import run_in_ranks
from safetensors.torch import load_file
from sharded_policies import saved_after_a_fault, trained

from stepstream.learner.model.checkpoint import describe

HYBRID = {"reproducible": False, "shard_ranks": 2}


def digests(folder: Path) -> dict[str, str]:
    return {file["path"]: file["sha256"] for file in describe(folder)}


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a version: weights and training state."""
    return {
        f"{path.relative_to(folder)} {name}": value
        for path in sorted(folder.rglob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def test_moments_in_host_memory_are_written_and_continued_with_the_bits_of_plain_ones(tmp_path: Path) -> None:
    folder, offloaded = tiny_model(tmp_path / "0"), {"optimizer_offload": True}
    trained(folder, tmp_path / "plain 1", (1,), {})
    trained(folder, tmp_path / "1", (1,), offloaded)
    assert digests(tmp_path / "1") == digests(tmp_path / "plain 1")
    trained(tmp_path / "plain 1", tmp_path / "plain 2", (2,), {})
    trained(tmp_path / "1", tmp_path / "2", (2,), offloaded)
    assert digests(tmp_path / "2") == digests(tmp_path / "plain 2")


@pytest.mark.slow
def test_hybrid_sharding_writes_the_version_of_one_process_and_continues_it(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "0")
    trained(folder, tmp_path / "plain", (1,), {})
    continued = trained(tmp_path / "plain", None, (2,), {})
    run_in_ranks(4, trained, folder, tmp_path / "1", (1,), HYBRID)
    plain, own = stored(tmp_path / "plain"), stored(tmp_path / "1")
    assert {name: value.shape for name, value in own.items()} == {name: value.shape for name, value in plain.items()}
    for name, value in plain.items():
        torch.testing.assert_close(own[name], value, rtol=0, atol=1e-4 * float(value.abs().max()), msg=name)
    for found in run_in_ranks(4, trained, tmp_path / "1", None, (2,), HYBRID | {"optimizer_offload": True}):
        for name, value in continued["weights"].items():
            assert np.abs(found["weights"][name] - value).max() <= 1e-4 * np.abs(value).max()


def test_rows_that_a_rank_cannot_write_at_first_are_written_again(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "0")
    assert run_in_ranks(2, saved_after_a_fault, folder, tmp_path / "1") == [
        "rank 1 cannot write its rows of a version: OSError(27, 'File too large')",
        "",
    ]
    assert stored(tmp_path / "1").keys() == {
        f"weights/model.safetensors {name}" for name in load_file(folder / "model.safetensors")
    }
    for name, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(stored(tmp_path / "1")[f"weights/model.safetensors {name}"], value)
