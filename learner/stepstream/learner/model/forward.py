"""From training sequences to log-probabilities of their trained tokens.

There are two ways. Packed (packs.py, attention.py): every token once, no padding, for models whose attention is plain.
Padded: any other model, with sequences of like length side by side. Which one a model takes is found out by trying.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.model import attention, lm_head
from stepstream.learner.model.packing import microbatches, pack, pack_batches
from stepstream.learner.model.pretrained import CannotTrain

log = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""By how many nats two ways may differ for the same model, by the precision of the matrix products."""


class Scores(NamedTuple):
    """What a model makes of trained tokens, sequence after sequence."""

    logprobs: Tensor
    """Log-probability of each, with gradient. Shape [trained tokens], on the CPU."""
    entropy: Tensor
    """Entropy in nats of what each was chosen from, without gradient. Shape [trained tokens], on the CPU."""
    states: Tensor | None = None
    """Hidden state that each was predicted from, without gradient, where asked. Shape [trained tokens, size], on the
    model's device."""


class ForwardPass(Protocol):
    """How sequences go through a model."""

    def batches(self, rows: Sequence[TokenSequence], most_tokens: int) -> list[list[int]]:
        """Indices of the sequences of each forward pass, which together have at most so many tokens (or one alone)."""

    def __call__(self, model: Any, rows: Sequence[TokenSequence], states: bool = False) -> Scores:
        """One forward pass; with `states`, hidden states too."""


class Padded:
    """Sequences side by side, padded on the right: causal attention keeps the padding out of what is before it."""

    def batches(self, rows: Sequence[TokenSequence], most_tokens: int) -> list[list[int]]:
        """Sequences of like length."""
        return microbatches([row.ids.size - 1 for row in rows], most_tokens)

    def __call__(self, model: Any, rows: Sequence[TokenSequence], states: bool = False) -> Scores:
        """One forward pass."""
        longest = max(row.ids.size for row in rows) - 1  # the last token is only predicted
        inputs = np.zeros((len(rows), longest), dtype=np.int64)
        for index, row in enumerate(rows):
            inputs[index, : row.ids.size - 1] = row.ids[:-1]
        at_row = np.repeat(np.arange(len(rows)), [row.trained.size for row in rows])
        at = torch.from_numpy(at_row * longest + np.concatenate([row.trained for row in rows]) - 1)
        targets = torch.from_numpy(np.concatenate([row.ids[row.trained] for row in rows]))
        hidden = _hidden(model, input_ids=torch.from_numpy(inputs)).flatten(0, 1)
        logprobs, entropy = _chosen(model, hidden, at, targets)
        return Scores(logprobs.cpu(), entropy.cpu(), _at(hidden, at) if states else None)


class Packed:
    """Sequences end to end, each shared beginning once."""

    def batches(self, rows: Sequence[TokenSequence], most_tokens: int) -> list[list[int]]:
        """Sequences that begin alike."""
        return pack_batches(rows, most_tokens)

    def __call__(self, model: Any, rows: Sequence[TokenSequence], states: bool = False) -> Scores:
        """One forward pass.

        Raises:
            NotPacked: the model's attention is of another kind.
        """
        packed = pack(rows)
        on_cpu = model.device.type == "cpu"
        runs = torch.from_numpy(packed.runs) if on_cpu else attention.Paths.of(packed, model.device)
        hidden = _hidden(
            model,
            input_ids=torch.from_numpy(packed.ids)[None],
            position_ids=torch.from_numpy(packed.positions)[None],
            runs=runs,
        )[0]
        at, of = torch.from_numpy(packed.at), torch.from_numpy(packed.of)
        found = _chosen(model, hidden, at, torch.from_numpy(packed.targets))
        logprobs, entropy = (each.cpu().index_select(0, of) for each in found)
        return Scores(logprobs, entropy, _at(hidden, at.index_select(0, of)) if states else None)


def forward_pass_for(model: Any) -> ForwardPass:
    """Packed, if that gives what the model gives otherwise; else padded.

    The model's attention is set to suit.

    Raises:
        CannotTrain: its output layer is not a plain one, or it does something unknown to its logits.
    """
    if type(model.get_output_embeddings()) is not nn.Linear:
        raise CannotTrain("its output layer is not a plain linear layer: leave it out of learner.lora_targets")
    padded = Padded()
    _check_head(model, padded)
    window = _window(model.config)
    if window < model.config.max_position_embeddings:
        log.info("training is padded: attention reaches back %d tokens only", window)
        return padded
    rows = _probe(model.config.vocab_size)
    given = model.config._attn_implementation
    try:
        with torch.no_grad():
            expected = padded(model, rows).logprobs
            attention.register()
            model.set_attn_implementation(attention.NAME)
            found = Packed()(model, rows).logprobs
        worst = float((found - expected).abs().max())
        if not worst < _tolerance(model):
            raise attention.NotPacked(f"packed log-probabilities are {worst:.3g} nats off")
    except Exception as error:  # there are hundreds of model classes, and as many ways not to take part
        log.info("training is padded: %s cannot be packed: %s", type(model).__name__, error)
        model.set_attn_implementation(given)
        return padded
    return Packed()


@torch.no_grad()
def _check_head(model: Any, way: ForwardPass) -> None:
    """The fused output layer must give what the model's own does.

    Raises:
        CannotTrain: it does not.
    """
    row = _probe(model.config.vocab_size)[0]
    ids = torch.from_numpy(row.ids).to(model.device)
    logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0].float()
    expected = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0].cpu()
    worst = float((way(model, [row]).logprobs - expected).abs().max())
    if not worst < _tolerance(model):
        raise CannotTrain(
            f"{type(model).__name__} does more to its logits than to scale and cap them: log-probabilities of its "
            f"output layer are {worst:.3g} nats off its own"
        )


def _tolerance(model: Any) -> float:
    kind = model.device.type
    return _TOLERANCE[torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32]


def _hidden(model: Any, **inputs: Any) -> Tensor:
    on_device = {key: each.to(model.device) if isinstance(each, Tensor) else each for key, each in inputs.items()}
    found: Tensor = model.get_decoder()(**on_device, use_cache=False).last_hidden_state
    return found


def _chosen(model: Any, hidden: Tensor, at: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    output, device = model.get_output_embeddings(), hidden.device
    states, twist = hidden.index_select(0, at.to(device)), lm_head.Twist.of(model.config)
    return lm_head.chosen_logprobs(states, output.weight, output.bias, targets.to(device), twist)


def _at(hidden: Tensor, at: Tensor) -> Tensor:
    return hidden.detach().index_select(0, at.to(hidden.device))


def _window(config: Any) -> float:
    """How many tokens every layer's attention reaches back at least."""
    limits = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min((limit for limit in limits if limit), default=float("inf"))


def _probe(vocabulary: int) -> list[TokenSequence]:
    """Sequences that share beginnings in every way that matters."""
    ids = np.random.default_rng(0).integers(vocabulary, size=(3, 24))
    ids[1, :12] = ids[0, :12]
    rows = (ids[0], ids[1], ids[2, :17], np.concatenate([ids[1, :18], ids[2, :5]]))
    none, nothing = np.empty(0, np.int64), np.empty(0, np.float32)
    return [TokenSequence(row, np.arange(1, row.size), nothing, none, none) for row in rows]
