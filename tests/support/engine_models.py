"""Compute reference log-probabilities and greedy tokens with transformers."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class TransformersModel:
    """A checkpoint that transformers runs."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder)

    @torch.no_grad()
    def logprobs(self, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Return the log-probabilities of the response's tokens."""
        logits = self._model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
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
