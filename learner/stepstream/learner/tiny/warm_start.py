"""Warm-start the tiny model: train it briefly on demonstrations, until it knows the format but mostly still fails.

The demonstrations are conversations in OpenAI's form, from any source. They are rendered message by message with the
chat template that serves. The template is append-only, so a message's tokens do not depend on later messages; the loss
covers the assistant's tokens. On CPU the same settings and conversations give the same bytes.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from stepstream.learner.tiny.model import MAX_LENGTH, build_model, build_tokenizer

Message = dict[str, Any]
_IGNORED = -100
_ANCHOR: Message = {"role": "user", "content": ""}


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Settings of the supervised phase."""

    steps: int = 150
    batch: int = 32
    """Number of conversations per step."""
    learning_rate: float = 4e-3
    """Peak of AdamW's step size; it rises over a tenth of the steps and then falls linearly to a tenth."""
    seed: int = 0
    threads: int = 1


def warm_start(folder: Path, conversations: Iterator[list[Message]], config: WarmStart) -> float:
    """Train a new tiny model on `conversations` and write it to `folder`, completely or not at all.

    Returns:
        The last step's loss, in nats per token of the assistant.

    Raises:
        FileExistsError: `folder` exists already.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; remove it to warm-start again")
    torch.set_num_threads(config.threads)
    tokenizer = build_tokenizer(MAX_LENGTH)
    model = build_model(tokenizer, config.seed)
    loss = _train(model, _Rendering(tokenizer), conversations, config)
    _write(folder, model, tokenizer)
    return loss


class _Rendering:
    """Tokenizes conversations with a loss mask, and caches the tokens of each message."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[tuple[str, bool], list[int]] = {}

    def tokens(self, conversation: Sequence[Message]) -> tuple[list[int], list[bool]]:
        ids: list[int] = []
        learned: list[bool] = []
        for message in conversation:
            piece = self._piece(message, first=not ids)
            ids += piece
            learned += [message["role"] == "assistant"] * len(piece)
        return ids, learned

    def _piece(self, message: Message, *, first: bool) -> list[int]:
        key = (json.dumps(message), first)
        if key not in self._pieces:
            before = [] if first else [_ANCHOR]
            self._pieces[key] = self._render([*before, message])[len(self._render(before)) :]
        return self._pieces[key]

    def _render(self, messages: list[Message]) -> list[int]:
        if not messages:
            return []
        text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _train(
    model: LlamaForCausalLM, rendering: _Rendering, conversations: Iterator[list[Message]], config: WarmStart
) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    rise = max(1, config.steps // 10)
    model.train()
    loss = torch.zeros(())
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min((step + 1) / rise, 1 - 0.9 * step / config.steps)
        inputs, targets = _batch([rendering.tokens(next(conversations)) for _ in range(config.batch)])
        logits = model(inputs).logits
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return loss.item()


def _batch(rows: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and next-token targets, both [rows, longest - 1]; other tokens than the assistant's are ignored."""
    longest = max(len(ids) for ids, _ in rows)
    inputs = torch.zeros(len(rows), longest - 1, dtype=torch.long)
    targets = torch.full((len(rows), longest - 1), _IGNORED)
    for row, (ids, learned) in enumerate(rows):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        aims = [token if aim else _IGNORED for token, aim in zip(ids[1:], learned[1:], strict=True)]
        targets[row, : len(aims)] = torch.tensor(aims)
    return inputs, targets


def _write(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        scratch.chmod(0o755)
        try:
            os.rename(scratch, folder)
        except OSError as error:
            raise FileExistsError(f"{folder} was created by another process in the meantime") from error
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
