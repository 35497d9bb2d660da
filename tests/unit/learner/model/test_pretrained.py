"""Check models of several families: load, train, publish and load again, with all weights or adapters."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from labelled_records import attempt, group_of
from peft import PeftModel
from safetensors.torch import load_file
from tiny_families import FAMILIES, tiny_of
from transformers import AutoModelForCausalLM

from stepstream.config import LearnerSettings
from stepstream.learner.model import row_files
from stepstream.learner.model.checkpoint import StoredWeights, describe, write_root, write_version
from stepstream.learner.model.pretrained import CannotTrain, model_folder
from stepstream.learner.training.trainer import Trainer
from stepstream.versions.layout import INDEX

ROWS = attempt(group_of("probe", 1)[0]).sequences
CASES = [
    *((family, torch.float32, 0) for family in FAMILIES),
    *((family, torch.bfloat16, 0) for family in ("llama", "gpt2")),
    *((family, torch.float32, 3) for family in ("qwen2", "gpt2")),
    ("llama", torch.bfloat16, 3),
]


def trained(folder: Path, target: Path, config: LearnerSettings, *updates: int) -> Trainer:
    trainer = Trainer(folder, config)
    for number in updates:
        figures = trainer.update(number, [[attempt(each) for each in group_of(f"g{number}", 4)]], version=0)
        assert 0.0 < figures["grad_norm"] < float("inf")
    write_version(trainer.snapshot(), folder, target)
    return trainer


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.tensor([[5, 6, 7, 8, 9]])).logits
    return found


def same(left: Path, right: Path) -> bool:
    return [(f["path"], f["sha256"]) for f in describe(left)] == [(f["path"], f["sha256"]) for f in describe(right)]


@pytest.mark.parametrize(("family", "dtype", "rank"), CASES)
def test_a_model_is_loaded_trained_and_saved(family: str, dtype: torch.dtype, rank: int, tmp_path: Path) -> None:
    with model_folder(str(tiny_of(family, tmp_path / "given", dtype))) as folder:
        write_root(folder, tmp_path / "0")
    config = LearnerSettings(preset="tiny", warmup_updates=0, learning_rate=1e-3, lora_rank=rank)
    trained(tmp_path / "0", tmp_path / "1", config, 1)
    resumed = trained(tmp_path / "1", tmp_path / "2", config, 2)
    trained(tmp_path / "0", tmp_path / "straight", config, 1, 2)
    assert same(tmp_path / "2", tmp_path / "straight")

    published = load_file(tmp_path / "2/weights/model.safetensors")
    given = load_file(tmp_path / "given/model.safetensors")
    assert {name: (each.shape, each.dtype) for name, each in published.items()} == {
        name: (each.shape, dtype) for name, each in given.items()
    }
    assert any(not torch.equal(published[name], given[name]) for name in given)
    AutoModelForCausalLM.from_pretrained(tmp_path / "2/weights", dtype="auto").save_pretrained(tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "2/weights" / name).read_bytes()
    served = AutoModelForCausalLM.from_pretrained(tmp_path / "2/weights", dtype=torch.float32)
    expected: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "given", dtype=torch.float32)
    if rank:
        expected = PeftModel.from_pretrained(expected, tmp_path / "2/training/adapter")
        base = Trainer(tmp_path / "0", LearnerSettings(preset="tiny")).policy
        torch.testing.assert_close(resumed.policy.reference_logprobs(ROWS), base.logprobs(ROWS).detach())
        assert not torch.allclose(resumed.policy.logprobs(ROWS), base.logprobs(ROWS))
        base_weights = tmp_path / "2/training/base/model.safetensors"
        assert base_weights.read_bytes() == (tmp_path / "0/weights/model.safetensors").read_bytes()
        torch.testing.assert_close(
            logits(served), logits(expected), atol=1e-4 if dtype == torch.float32 else 0.05, rtol=0
        )
    else:
        assert not (tmp_path / "2/training/base").exists()


def test_adapters_of_another_shape_start_from_the_published_weights(tmp_path: Path) -> None:
    tiny_of("llama", tmp_path / "0")
    trained(tmp_path / "0", tmp_path / "1", LearnerSettings(preset="tiny", warmup_updates=0, lora_rank=2), 1)
    other = LearnerSettings(preset="tiny", warmup_updates=0, lora_rank=2, lora_targets=["q_proj"])
    trainer = trained(tmp_path / "1", tmp_path / "2", other, 2)
    assert all("q_proj.lora_" in name for name in trainer.policy.weights)
    base_weights = tmp_path / "2/training/base/model.safetensors"
    assert base_weights.read_bytes() == (tmp_path / "1/weights/model.safetensors").read_bytes()
    trainer = trained(tmp_path / "2", tmp_path / "3", LearnerSettings(preset="tiny", warmup_updates=0), 3)
    with pytest.raises(ValueError, match=r"learner\.lora_rank"):
        trainer.policy.reference_logprobs(ROWS)
    given = {path.name for path in (tmp_path / "0").iterdir()} | {INDEX}
    assert {path.name for path in (tmp_path / "3/weights").iterdir()} == given
    assert [path.name for path in (tmp_path / "3/training").iterdir()] == ["optimizer.safetensors"]
    write_root(tmp_path / "2", tmp_path / "new root")
    assert {path.name for path in (tmp_path / "new root/weights").iterdir()} == given
    assert [path.name for path in (tmp_path / "new root").iterdir()] == ["weights"]
    with pytest.raises(CannotTrain, match=r"learner\.lora_targets"):
        Trainer(tmp_path / "0", LearnerSettings(preset="tiny", lora_rank=2, lora_targets=["no_such_layer"]))


def test_weights_in_several_files_are_trained_and_published_as_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of files changes neither the weights that are trained nor those that are published."""
    given = tiny_of("qwen2", tmp_path / "given", torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(given, dtype="auto")
    tensors = {}
    for shard in ("several", "one"):
        model.save_pretrained(tmp_path / shard, max_shard_size="20KB" if shard == "several" else "1GB")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (tmp_path / shard / name).write_bytes((given / name).read_bytes())
        with model_folder(str(tmp_path / shard)) as folder:
            files = write_root(folder, tmp_path / f"root of {shard}")
        assert len([file for file in files if file["path"].endswith(".safetensors")]) == (
            2 if shard == "several" else 1
        )
        monkeypatch.setattr(row_files, "FILE_BYTES", 20_000 if shard == "one" else 10**9)
        trained(
            tmp_path / f"root of {shard}",
            tmp_path / f"1 of {shard}",
            LearnerSettings(preset="tiny", warmup_updates=0),
            1,
        )
        optimizers = list((tmp_path / f"1 of {shard}/training").glob("optimizer*.safetensors"))
        assert (len(optimizers) > 1) == (shard == "one")
        trained(
            tmp_path / f"1 of {shard}", tmp_path / f"2 of {shard}", LearnerSettings(preset="tiny", warmup_updates=0), 2
        )
        stored = StoredWeights(tmp_path / f"2 of {shard}")
        tensors[shard] = {name: stored[name] for name in stored}
        AutoModelForCausalLM.from_pretrained(tmp_path / f"1 of {shard}/weights")
    assert len(list((tmp_path / "1 of one/weights").glob("*.safetensors"))) > 1
    assert tensors["one"].keys() == tensors["several"].keys()
    assert all(torch.equal(tensors["one"][name], value) for name, value in tensors["several"].items())


def test_files_with_other_tensors_than_the_model_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The experts of a mixture are one tensor of the model, and a tensor each in its files."""
    monkeypatch.setitem(FAMILIES, "mixtral", FAMILIES["llama"] | {"num_local_experts": 4})
    write_root(tiny_of("mixtral", tmp_path / "given"), tmp_path / "0")
    trained(tmp_path / "0", tmp_path / "1", LearnerSettings(preset="tiny", warmup_updates=0), 1)
    trained(tmp_path / "1", tmp_path / "2", LearnerSettings(preset="tiny", warmup_updates=0), 2)
    AutoModelForCausalLM.from_pretrained(tmp_path / "2/weights", dtype="auto").save_pretrained(tmp_path / "again")
    again, published = (load_file(tmp_path / part / "model.safetensors") for part in ("again", "2/weights"))
    assert again.keys() == published.keys() == load_file(tmp_path / "given/model.safetensors").keys()
    assert all(torch.equal(again[name], value) for name, value in published.items())


def test_weights_in_an_older_form_are_converted(tmp_path: Path) -> None:
    given = tiny_of("qwen2", tmp_path / "given", torch.bfloat16)
    (tmp_path / "old").mkdir()
    for path in given.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / "old" / path.name).write_bytes(path.read_bytes())
    torch.save(load_file(given / "model.safetensors"), tmp_path / "old/pytorch_model.bin")
    with model_folder(str(tmp_path / "old")) as folder:
        assert same(folder, given)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "t5"}, "'t5' is not a causal language model"),
        ({"model_type": "mamba"}, "max_position_embeddings"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
        ({"model_type": "no-such-kind"}, "config.json cannot be used"),
        ({"model_type": "llama"}, "has no tokenizer"),
    ],
)
def test_an_untrainable_model_is_rejected_early(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CannotTrain, match=why), model_folder(str(tmp_path)):
        pass


def test_a_name_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tiny_of("llama", tmp_path / "cache")

    def fetch(name: str, ignore_patterns: list[str]) -> str:
        if name != "some/model":
            raise huggingface_hub.errors.LocalEntryNotFoundError("cannot find the requested files")
        return str(cached)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with model_folder("some/model") as folder:
        assert folder == cached
    refused = pytest.raises(CannotTrain, match=r"some/other is not a folder, .*cannot find the requested files")
    with refused, model_folder("some/other"):
        pass
