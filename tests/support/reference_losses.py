"""Compute losses and gradients with independent implementations, on the seeded batches of `loss_batches`.

Run `python tests/support/reference_losses.py tests/data/losses` where AReaL, TRL and M2PO's fork of verl are installed;
docs/measured/references.md has their versions and installation. It calls their functions unchanged and stores losses
and gradients, in float64 where the reference computes in it. `test_loss_references.py` reads the files.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import torch
from loss_batches import Credit, Ragged, padded, ragged
from torch import Tensor

SEEDS = (1, 2, 3)
CREDITS = get_args(Credit)
SPREAD = 0.8
BY_STEP = {
    "areal": (
        *("ppo", "ppo_dual", "ppo_coupled", "tis", "icepop", "mask_sequences", "truncate_sequences"),
        *("sapo", "m2po", "m2po_wide"),
    ),
    "trl": ("grpo", "bnpo", "dr_grpo", "two_sided", "cispo", "sapo", "opsm", "tis", "kl"),
    "m2po": (),
}
"""Cases that are also computed with one advantage a step. The others have one advantage a sequence: with several, the
references define GSPO differently (AReaL takes their mean, TRL sums their gradients)."""
TRL_LENGTH = 16
"""TRL's max_completion_length for its dr_grpo."""


def figures(loss: Tensor, leaf: Tensor) -> dict[str, Any]:
    """Return the loss and its gradient."""
    (gradient,) = torch.autograd.grad(loss, leaf)
    return {"loss": loss.item(), "gradient": gradient.tolist()}


def areal() -> Iterator[tuple[str, Callable[[Ragged], dict[str, Any]]]]:
    """Yield AReaL's actor losses, packed; its functions take the mean over tokens."""
    from areal.api.cli_args import RejectionSamplingConfig as Reject
    from areal.trainer.ppo.actor import _apply_m2po_masking, compute_prox_logp_approximations
    from areal.utils.functional.functional import dpo_preference_loss, ppo_actor_loss_fn, sapo_loss_fn

    def packed(data: Ragged) -> dict[str, Any]:
        ends = torch.tensor([0, *data.lengths]).cumsum(0)
        return {"loss_mask": torch.ones_like(data.current, dtype=torch.bool), "cu_seqlens": ends}

    def ppo(data: Ragged, coupled: bool = False, **config: Any) -> dict[str, Any]:
        batch = data.batch
        proximal = batch.behaviour if coupled else batch.proximal
        fields = {"eps_clip": 0.2, "eps_clip_higher": 0.28, **packed(data), **config}
        loss, _ = ppo_actor_loss_fn(batch.current, proximal, batch.behaviour, batch.advantage, **fields)
        return figures(loss, data.current)

    def sapo(data: Ragged, level: str) -> dict[str, Any]:
        batch = data.batch
        loss, _ = sapo_loss_fn(
            batch.current, batch.behaviour, batch.advantage, 1.0, 1.05, importance_sampling_level=level, **packed(data)
        )
        return figures(loss, data.current)

    def m2po(data: Ragged, budget: float) -> dict[str, Any]:
        batch = data.batch
        mask = _apply_m2po_masking(batch.behaviour, batch.proximal, packed(data)["loss_mask"], budget)
        # Its denominator counts only the unmasked tokens: scale to all tokens, as in the other references.
        share = int(mask.sum()) / mask.numel()
        result = ppo(data, loss_mask=mask, rejection_sampling=Reject(action="clamp", upper=1e9))
        return {
            "kept": mask.tolist(),
            "loss": result["loss"] * share,
            "gradient": [value * share for value in result["gradient"]],
        }

    def interpolated(data: Ragged) -> dict[str, Any]:
        batch = data.batch
        found = compute_prox_logp_approximations(
            batch.behaviour, batch.current.detach(), batch.versions, batch.version + 1, "loglinear"
        )
        return {"proximal": found["loglinear"].tolist()}

    def pairs(data: Ragged) -> dict[str, Any]:
        reference = data.batch.reference
        assert reference is not None
        return figures(dpo_preference_loss(data.current - reference, beta=0.1).sum(), data.current)

    gspo: dict[str, Any] = {"importance_sampling_level": "sequence", "eps_clip": 3e-4, "eps_clip_higher": 4e-4}
    by_sequence = {"level": "sequence", "agg": "mean"}
    yield "ppo", ppo
    yield "ppo_dual", lambda data: ppo(data, c_clip=1.5)
    yield "ppo_coupled", lambda data: ppo(data, coupled=True)
    yield "tis", lambda data: ppo(data, rejection_sampling=Reject(action="clamp", upper=2.0))
    yield "icepop", lambda data: ppo(data, rejection_sampling=Reject(lower=0.5, upper=5.0))
    yield "mask_sequences", lambda data: ppo(data, rejection_sampling=Reject(lower=0.9, upper=1.25, **by_sequence))
    yield (
        "truncate_sequences",
        lambda data: ppo(data, rejection_sampling=Reject(action="clamp", upper=1.1, **by_sequence)),
    )
    yield "gspo", lambda data: ppo(data, **gspo)
    yield (
        "gspo_truncate_sequences",
        lambda data: ppo(data, rejection_sampling=Reject(action="clamp", upper=1.1, **by_sequence), **gspo),
    )
    yield "sapo", lambda data: sapo(data, "token")
    yield "sapo_sequence", lambda data: sapo(data, "sequence")
    yield "m2po", lambda data: m2po(data, 0.04)
    yield "m2po_wide", lambda data: m2po(data, 0.5)
    yield "interpolated", interpolated
    yield "dpo", pairs


def trl() -> Iterator[tuple[str, Callable[[Ragged], dict[str, Any]]]]:
    """Yield TRL's GRPO and KTO losses, padded, with given log-probabilities of the policy."""
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.kto_trainer import KTOTrainer

    def grpo(
        data: Ragged,
        loss_type: str = "grpo",
        level: str = "token",
        low: float = 0.2,
        high: float = 0.28,
        delta: float | None = None,
        beta: float = 0.0,
        opsm: float | None = None,
        cap: float | None = None,
        coupled: bool = False,
    ) -> dict[str, Any]:
        batch, lengths = data.batch, data.lengths
        assert batch.proximal is not None
        assert batch.reference is not None
        mask = padded(torch.ones_like(batch.advantage), lengths)
        current = padded(data.current, lengths)
        idle = torch.zeros(len(lengths), 1)
        inputs = {
            "prompt_ids": idle,
            "prompt_mask": idle,
            "completion_ids": mask,
            "completion_mask": mask,
            "advantages": padded(batch.advantage, lengths),
            "old_per_token_logps": padded(batch.behaviour if coupled else batch.proximal, lengths),
            "sampling_per_token_logps": padded(batch.behaviour, lengths),
            "ref_per_token_logps": padded(batch.reference, lengths),
            "num_items_in_batch": mask.sum(),
        }
        if cap is not None:
            inputs["importance_sampling_ratio"] = padded((batch.proximal - batch.behaviour).exp(), lengths).clamp(
                max=cap
            )
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (current, torch.zeros_like(current), None),
            get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
            args=SimpleNamespace(
                use_bias_correction_kl=True,
                delta=delta,
                sapo_temperature_pos=1.0,
                sapo_temperature_neg=1.05,
                steps_per_generation=1,
            ),
            accelerator=SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1),
            _metrics=defaultdict(lambda: defaultdict(list)),
            model=SimpleNamespace(training=False),
            loss_type=loss_type,
            importance_sampling_level=level,
            epsilon_low=low,
            epsilon_high=high,
            beta=beta,
            off_policy_mask_threshold=opsm,
            use_vllm=cap is not None,
            vllm_importance_sampling_correction=True,
            max_completion_length=TRL_LENGTH,
            aux_loss_enabled=False,
            top_entropy_quantile=1.0,
            _entropy_bonus_enabled=False,
        )
        return figures(GRPOTrainer._compute_loss(trainer, trainer.model, inputs), data.current)

    class Given:
        """A model whose log-probabilities are known."""

        training = False

        def __init__(self, log_probs: Tensor) -> None:
            self.found = SimpleNamespace(log_probs=log_probs, entropy=log_probs * 0, mean_logits=log_probs * 0)

        def __call__(self, **_: Any) -> Any:
            return self.found

    def kto(data: Ragged, shift: float) -> dict[str, Any]:
        batch, lengths = data.batch, data.lengths
        assert batch.reference is not None
        model, reference = Given(padded(data.current, lengths)), padded(batch.reference, lengths).sum(-1)
        mask = padded(torch.ones_like(batch.advantage, dtype=torch.int64), lengths)
        mask = torch.nn.functional.pad(mask, (1, 0))  # its sequences begin with a token that nothing predicts
        trainer = SimpleNamespace(
            model=model,
            accelerator=SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x),
            _metrics=defaultdict(lambda: defaultdict(list)),
            _compute_kl_logps=lambda model, batch: reference + shift,
            aux_loss_enabled=False,
            precompute_ref_logps=True,
            calculate_KL=True,
            _total_train_tokens=0,
            loss_type="kto",
            beta=0.1,
            desirable_weight=1.0,
            undesirable_weight=1.5,
        )
        inputs = {
            "input_ids": mask,
            "completion_mask": mask,
            "label": padded(batch.advantage, lengths)[:, 0] > 0,
            "ref_logps": reference,
            "ref_KL_logps": reference,
        }
        return figures(KTOTrainer._compute_loss(trainer, model, inputs, False), data.current)

    yield "kto", lambda data: kto(data, 0.4)
    yield "kto_below", lambda data: kto(data, -0.4)
    yield "grpo", grpo
    yield "bnpo", lambda data: grpo(data, "bnpo")
    yield "dr_grpo", lambda data: grpo(data, "dr_grpo")
    yield "two_sided", lambda data: grpo(data, delta=1.5)
    yield "gspo", lambda data: grpo(data, level="sequence", low=3e-4, high=4e-4)
    yield "cispo", lambda data: grpo(data, "cispo", high=1.2)
    yield "cispo_sequence", lambda data: grpo(data, "cispo", level="sequence", high=1.05)
    yield "sapo", lambda data: grpo(data, "sapo", coupled=True)
    yield "sapo_sequence", lambda data: grpo(data, "sapo", level="sequence", coupled=True)
    yield "opsm", lambda data: grpo(data, opsm=0.05)
    yield "tis", lambda data: grpo(data, cap=2.0)
    yield "kl", lambda data: grpo(data, beta=0.04, coupled=True)


def m2po() -> Iterator[tuple[str, Callable[[Ragged], dict[str, Any]]]]:
    """Yield the loss of M2PO's authors, padded, mean over tokens."""
    from verl.trainer.ppo.core_algos import compute_m2po_policy_loss

    def loss(data: Ragged, budget: float) -> dict[str, Any]:
        batch, lengths = data.batch, data.lengths
        mask = padded(torch.ones_like(batch.advantage), lengths)
        found = compute_m2po_policy_loss(
            padded(batch.behaviour, lengths),
            padded(data.current, lengths),
            # Its first column decides for a whole sequence.
            padded(batch.advantage, lengths)[:, :1].expand_as(mask),
            mask,
            budget,
        )
        return figures(found[0], data.current)

    yield "m2po", lambda data: loss(data, 0.04)
    yield "m2po_middle", lambda data: loss(data, 0.3)
    yield "m2po_wide", lambda data: loss(data, 10.0)


REFERENCES = {"areal": areal, "trl": trl, "m2po": m2po}


def computed(name: str) -> Iterator[dict[str, Any]]:
    """Return the figures of a reference for every batch."""
    for case, call in REFERENCES[name]():
        for credit in CREDITS if case in BY_STEP[name] else CREDITS[:1]:
            for seed in SEEDS:
                asked = {"seed": seed, "spread": SPREAD, "credit": credit}
                yield {"case": case, **asked, **call(ragged(**asked))}


def main(folder: Path) -> None:
    """Write one file for each reference."""
    for name in REFERENCES:
        cases = list(computed(name))
        lines = ",\n".join(json.dumps(case) for case in cases)
        (folder / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
