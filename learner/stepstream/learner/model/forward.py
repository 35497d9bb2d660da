"""Compute log-probabilities of the trained tokens of training sequences.

There are two forward passes. Packed (`packing.py`, `attention.py`): every token once, no padding, for models with plain
attention. Padded: sequences of similar length side by side, for any other model. A trial selects one.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stepstream.learner.data.kept_ids import KeptIds
from stepstream.learner.data.sequences import TokenSequence, joined_kept, joined_temperatures
from stepstream.learner.model import attention, lm_head
from stepstream.learner.model.packing import microbatches, pack, pack_batches
from stepstream.learner.model.pretrained import CannotTrain
from stepstream.learner.model.sequence_parallel import ALONE, SequenceGroup, SplitRuns

log = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""Largest difference in nats between two forward passes of a model, by the precision of the matrix products."""


class Scores(NamedTuple):
    """Results of a forward pass for the trained tokens, sequence after sequence."""

    logprobs: Tensor
    """Log-probability of each token at its temperature and among its kept ids, with gradient. Shape [trained tokens],
    on the CPU."""
    entropy: Tensor
    """Entropy in nats of the distribution that predicts each token, without gradient. Shape [trained tokens], on the
    CPU."""
    states: Tensor | None = None
    """Hidden state that predicts each token, without gradient; None: not requested. Shape [trained tokens, size], on
    the model's device."""


class ForwardPass(Protocol):
    """Splits sequences into batches and runs a batch through a model."""

    def batches(self, rows: Sequence[TokenSequence], most_tokens: int) -> list[list[int]]:
        """Return the indices of the sequences of each batch, of at most `most_tokens` tokens (or one sequence)."""

    def __call__(self, model: Any, rows: Sequence[TokenSequence], states: bool = False) -> Scores:
        """Run one forward pass; with `states`, return hidden states too."""


class Padded:
    """Sequences side by side, padded on the right: causal attention hides the padding from the tokens before it."""

    def batches(self, rows: Sequence[TokenSequence], most_tokens: int) -> list[list[int]]:
        """Batch sequences of similar length."""
        return microbatches([row.ids.size - 1 for row in rows], most_tokens)

    def __call__(self, model: Any, rows: Sequence[TokenSequence], states: bool = False) -> Scores:
        """Run one forward pass."""
        longest = max(row.ids.size for row in rows) - 1  # the last token is only predicted
        inputs = np.zeros((len(rows), longest), dtype=np.int64)
        for index, row in enumerate(rows):
            inputs[index, : row.ids.size - 1] = row.ids[:-1]
        at_row = np.repeat(np.arange(len(rows)), [row.trained.size for row in rows])
        at = torch.from_numpy(at_row * longest + np.concatenate([row.trained for row in rows]) - 1)
        targets = torch.from_numpy(np.concatenate([row.ids[row.trained] for row in rows]))
        hidden = _hidden(model, input_ids=torch.from_numpy(inputs)).flatten(0, 1)
        logprobs, entropy = _chosen(model, hidden, at, targets, joined_temperatures(rows), joined_kept(rows))
        return Scores(logprobs.cpu(), entropy.cpu(), _at(hidden, at) if states else None)


class Packed:
    """Sequences end to end, with each common prefix once."""

    def __init__(self, ranks: SequenceGroup = ALONE) -> None:
        """Each of the ranks computes a share of a pack's tokens and returns the scores of all."""
        self._ranks = ranks

    def batches(self, rows: Sequence[TokenSequence], most_tokens: int) -> list[list[int]]:
        """Batch sequences with common prefixes."""
        return pack_batches(rows, most_tokens)

    def __call__(self, model: Any, rows: Sequence[TokenSequence], states: bool = False) -> Scores:
        """Run one forward pass.

        Raises:
            NotPacked: the model's attention is of another kind.
        """
        ranks = self._ranks
        packed = ranks.pad(pack(rows))
        on_cpu = model.device.type == "cpu"
        runs: Any = torch.from_numpy(packed.runs) if on_cpu else attention.FlashRuns.of(packed, model.device)
        own, ends = ranks.own_tokens(packed.ids.size), ranks.prediction_ends(packed)
        hidden = _hidden(
            model,
            input_ids=torch.from_numpy(packed.ids[own])[None],
            position_ids=torch.from_numpy(packed.positions[own])[None],
            runs=runs if ranks.size == 1 else SplitRuns(runs, ranks),
        )[0]
        part = slice(ends[ranks.rank], ends[ranks.rank + 1])
        at, of = torch.from_numpy(packed.at[part] - own.start), torch.from_numpy(packed.of)
        heat = None if packed.temperatures is None else packed.temperatures[part]
        kept = None if packed.kept is None else packed.kept.take(np.arange(part.start, part.stop))
        predicted = [*_chosen(model, hidden, at, torch.from_numpy(packed.targets[part]), heat, kept)]
        if states:
            predicted.append(_at(hidden, at))
        joined = [ranks.join(each, ends) for each in predicted]
        logprobs, entropy = (each.cpu().index_select(0, of) for each in joined[:2])
        return Scores(logprobs, entropy, _at(joined[2], of) if states else None)


def forward_pass_for(model: Any, ranks: SequenceGroup = ALONE) -> ForwardPass:
    """Return the packed forward pass if its results equal those of the padded one, else the padded one.

    Sets the model's attention accordingly.

    Args:
        model: the model.
        ranks: ranks that share the tokens of each pack.

    Raises:
        CannotTrain: its output layer is not a plain linear layer, it transforms its logits in an unknown way, or ranks
            share packs and it cannot be packed.
    """
    if type(model.get_output_embeddings()) is not nn.Linear:
        raise CannotTrain("its output layer is not a plain linear layer: leave it out of learner.lora_targets")
    padded = Padded()
    _check_head(model, padded)
    window = _window(model.config)
    if window < model.config.max_position_embeddings:
        return _unpacked(f"the attention window has only {window:g} tokens", padded, ranks)
    rows = _probe(model.config.vocab_size)
    given = model.config._attn_implementation
    try:
        with torch.no_grad():
            expected = padded(model, rows).logprobs
            attention.register()
            model.set_attn_implementation(attention.NAME)
            packed = Packed(ranks)(model, rows).logprobs
        worst = float((packed - expected).abs().max())
        if not worst < _tolerance(model):
            raise attention.NotPacked(f"packed log-probabilities are {worst:.3g} nats off")
    except Exception as error:  # any of hundreds of model classes may fail in its own way
        model.set_attn_implementation(given)
        return _unpacked(f"{type(model).__name__} cannot be packed: {error}", padded, ranks)
    return Packed(ranks)


def _unpacked(reason: str, padded: Padded, ranks: SequenceGroup) -> Padded:
    """Return the padded forward pass, for a reason.

    Raises:
        CannotTrain: ranks share the tokens of packs.
    """
    if ranks.size > 1:
        raise CannotTrain(f"ranks can only share packs, and {reason}: set learner.sequence_parallel=1")
    log.info("training is padded: %s", reason)
    return padded


@torch.no_grad()
def _check_head(model: Any, forward_pass: ForwardPass) -> None:
    """Check that the fused output layer gives the log-probabilities of the model's own.

    Raises:
        CannotTrain: it does not.
    """
    row = _probe(model.config.vocab_size)[0]
    ids = torch.from_numpy(row.ids).to(model.device)
    logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0].float()
    expected = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0].cpu()
    worst = float((forward_pass(model, [row]).logprobs - expected).abs().max())
    if not worst < _tolerance(model):
        raise CannotTrain(
            f"{type(model).__name__} transforms its logits by more than scale and cap: log-probabilities of the fused "
            f"output layer are {worst:.3g} nats off the model's own"
        )


def _tolerance(model: Any) -> float:
    kind = model.device.type
    precision = model.get_output_embeddings().weight.dtype  # of the gathered weights
    return _TOLERANCE[torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else precision]


def _hidden(model: Any, **inputs: Any) -> Tensor:
    on_device = {key: each.to(model.device) if isinstance(each, Tensor) else each for key, each in inputs.items()}
    hidden: Tensor = model.get_decoder()(**on_device, use_cache=False).last_hidden_state
    return hidden


def _chosen(
    model: Any,
    hidden: Tensor,
    at: Tensor,
    targets: Tensor,
    temperatures: npt.NDArray[np.float32] | None,
    kept: KeptIds | None,
) -> tuple[Tensor, Tensor]:
    output, device = model.get_output_embeddings(), hidden.device
    states, transform = hidden.index_select(0, at.to(device)), lm_head.LogitTransform.of(model.config)
    heat = None if temperatures is None else torch.from_numpy(temperatures).to(device)
    mask = None
    if kept is not None:
        mask = lm_head.Mask(torch.from_numpy(kept.counts), torch.from_numpy(kept.ids).to(device))
    return lm_head.chosen_logprobs(states, output.weight, output.bias, targets.to(device), transform, heat, mask)


def _at(hidden: Tensor, at: Tensor) -> Tensor:
    return hidden.detach().index_select(0, at.to(hidden.device))


def _window(config: Any) -> float:
    """Return the smallest attention window of the model's layers, in tokens; infinite: no window."""
    limits = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min((limit for limit in limits if limit), default=float("inf"))


def _probe(vocabulary: int) -> list[TokenSequence]:
    """Return sequences that cover the kinds of common prefixes: none, partial, and branches of a branch."""
    ids = np.random.default_rng(0).integers(vocabulary, size=(3, 24))
    ids[1, :12] = ids[0, :12]
    rows = (ids[0], ids[1], ids[2, :17], np.concatenate([ids[1, :18], ids[2, :5]]))
    none, nothing = np.empty(0, np.int64), np.empty(0, np.float32)
    return [TokenSequence(row, np.arange(1, row.size), nothing, none, none) for row in rows]
