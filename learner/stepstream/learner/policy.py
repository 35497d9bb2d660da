"""The policy in training, as the trainer sees it: everything that knows where weights live and how they are stepped."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepstream.config.sections import Learner
from stepstream.learner.attempt import Limits, Tokens
from stepstream.learner.forward import chosen_logprobs

_MOMENTS = ("exp_avg", "exp_avg_sq")


class CannotTrain(Exception):
    """A model that the learner does not know how to train; the message says why."""


class Policy:
    """A Hugging Face causal language model in float32 and its AdamW state."""

    def __init__(self, folder: Path, how: Learner) -> None:
        """Loads the model from a folder in Hugging Face form, with fresh optimizer state.

        Raises:
            CannotTrain: its logits are not the plain product of hidden states and output embeddings.
        """
        from transformers import AutoModelForCausalLM, logging  # takes seconds to import

        logging.disable_progress_bar()
        torch.use_deterministic_algorithms(True)
        # Nothing here reads memory before writing it; filling it with NaN first costs 5 % of an update.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.set_num_threads(how.threads)
        self._most_norm = how.max_grad_norm
        # Without dropout the log-probabilities of one version are a function of the tokens alone.
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="sdpa", dtype=torch.float32
        ).eval()
        for twist in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(self.model.config, twist, None) not in (None, 1.0):
                raise CannotTrain(f"{folder}: models with `{twist}` are not supported")
        self.weights = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        """What is trained, by name."""
        self._optimizer = torch.optim.AdamW(
            self.weights.values(), lr=how.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def limits(self, name: str) -> Limits:
        """What records must keep to, for the model called `name`."""
        config = self.model.config
        return Limits(name, config.vocab_size, config.max_position_embeddings)

    def logprobs(self, rows: Sequence[Tokens]) -> Tensor:
        """Log-probability of every trained token, sequence after sequence, with gradient. Shape [trained tokens]."""
        return chosen_logprobs(self.model, rows)

    def step(self, rate: float) -> float:
        """Steps on the gradients gathered since the last step, scaled down to the largest norm allowed.

        Returns:
            Their norm before that; where it is not finite they were thrown away.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.weights.values(), self._most_norm))
        if np.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        self._optimizer.zero_grad()
        return norm

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state as named tensors, to be saved beside the weights."""
        state: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            for key, value in self._optimizer.state[weight].items():
                state[f"{name}.{key}"] = value.contiguous()
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continues from what `state` gave."""
        for name, weight in self.weights.items():
            if f"{name}.step" in state:
                self._optimizer.state[weight] = {key: state[f"{name}.{key}"].clone() for key in ("step", *_MOMENTS)}
