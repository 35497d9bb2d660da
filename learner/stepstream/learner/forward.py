"""From training sequences to log-probabilities of their trained tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from stepstream.learner.attempt import Tokens


def chosen_logprobs(model: Any, rows: Sequence[Tokens]) -> Tensor:
    """Log-probability of every trained token under `model`, sequence after sequence. Shape [trained tokens].

    Sequences are padded on the right, so causal attention keeps the padding out of everything before it and no
    mask is needed; logits are computed at trained positions only.
    """
    longest = max(row.ids.size for row in rows) - 1  # the last token is only predicted
    inputs = np.zeros((len(rows), longest), dtype=np.int64)
    for index, row in enumerate(rows):
        inputs[index, : row.ids.size - 1] = row.ids[:-1]
    at_row = np.repeat(np.arange(len(rows)), [row.trained.size for row in rows])
    at = torch.from_numpy(at_row * longest + np.concatenate([row.trained for row in rows]) - 1)
    targets = torch.from_numpy(np.concatenate([row.ids[row.trained] for row in rows]))
    hidden = model.get_decoder()(input_ids=torch.from_numpy(inputs), use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden.flatten(0, 1).index_select(0, at))
    return -cross_entropy(logits.float(), targets, reduction="none")
