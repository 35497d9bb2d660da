"""Make versions and adapters for engines; compute reference log-probabilities and greedy tokens with transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from labelled_records import attempt, group_of, tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepstream.config import LearnerSettings
from stepstream.learner.model.checkpoint import write_version
from stepstream.learner.training.trainer import Trainer


def trained_version(root: Path, target: Path, updates: int = 1) -> Path:
    """Train the model in `root`, write the version as the learner does, and return the folder of its weights."""
    trainer = Trainer(root, LearnerSettings(preset="tiny", warmup_updates=0, learning_rate=1e-2))
    for number in range(updates):
        trainer.update(number, [[attempt(label) for label in group_of(f"g{number}", 4)]], version=0)
    write_version(trainer.snapshot(), root, target)
    return target / "weights"


def constant_model(folder: Path, character: str) -> Path:
    """Write a tiny model that answers every prompt with one character, again and again, at temperature 0."""
    tiny_model(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for layer in model.model.layers:  # the last token's embedding alone decides
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embeddings = model.get_input_embeddings().weight.fill_(1.0)
        embeddings[AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(character)] = 2.0
    model.save_pretrained(folder)
    return folder


def adapters(base: Path, folder: Path, seed: int, *, rank: int = 8, scale: float = 1.0) -> Path:
    """Write random adapters of a model in PEFT's layout."""
    from peft import LoraConfig, get_peft_model  # takes seconds, and few callers need it

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=rank, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]),
    )
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data = torch.randn_like(weight) * 0.1 * scale
    model.save_pretrained(str(folder))
    return folder


class TransformersModel:
    """A checkpoint that transformers runs."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder)

    @classmethod
    def of(cls, model: Any) -> "TransformersModel":
        """Return the reference of a model in memory."""
        reference = cls.__new__(cls)
        reference._model = model
        return reference

    @torch.no_grad()
    def logits(self, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
        """Return the logits before each of the response's tokens, [tokens, V]."""
        logits: torch.Tensor = self._model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        return logits

    @torch.no_grad()
    def logprobs(self, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Return the log-probabilities of the response's tokens."""
        logits = self.logits(prompt, response)
        logprobs = (logits / temperature).log_softmax(-1)
        picked: list[float] = logprobs.gather(1, torch.tensor(response)[:, None])[:, 0].tolist()
        return picked

    @torch.no_grad()
    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Return the likeliest tokens; an end-of-turn token is the last."""
        ids = list(prompt)
        while len(ids) < len(prompt) + tokens:
            ids.append(int(self._model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == self._model.config.eos_token_id:
                break
        return ids[len(prompt) :]
