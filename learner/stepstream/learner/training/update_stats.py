"""Compute the figures of an update, for its event and the checkpoint."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.sequences import UNVERSIONED
from stepstream.learner.losses import LAGS, Bucket, by_lag, effective_share, kl_estimate, lag_shares
from stepstream.learner.training.rows import Row
from stepstream.learner.training.two_pass_loss import UpdateStats

_LAG_NAMES = [f"staleness_share_{most}" for most in (*LAGS, "more")]


def step_figures(steps: Sequence[UpdateStats]) -> dict[str, float]:
    """Return the figures of an update's gradient steps."""
    weights = torch.cat([weight for step in steps for weight in step.weights])
    tokens = max(1, weights.numel())
    return {
        "loss": sum(step.loss for step in steps) / len(steps),
        "clip_share": sum(step.clipped for step in steps) / tokens,
        "cap_share": sum(step.capped for step in steps) / tokens,
        "rejected_share": sum(step.rejected for step in steps) / tokens,
        "entropy": sum(step.entropy for step in steps) / tokens,
        "effective_share": effective_share(weights),
        "kl": kl_estimate(weights),
        "reference_kl": sum(step.reference_kl for step in steps) / tokens,
        "tokens": float(weights.numel()),
        "grad_norm": max(step.grad_norm for step in steps),
        "steps_skipped": float(sum(step.skipped for step in steps)),
    }


def gap_figures(steps: Sequence[UpdateStats]) -> dict[str, float]:
    """Return figures about the difference between learner and engine; empty without tokens of the present version.

    With d = log p - log μ, where both are the same weights, `mismatch_kl` is the mean of exp(d) - 1 - d: the estimate
    k3 of KL(μ‖p), which is never negative.
    """
    gaps = torch.cat([torch.empty(0), *(each for step in steps for each in step.gaps)]).double()
    if not gaps.numel():
        return {}
    return {
        "mu_gap_mean": float(gaps.abs().mean()),
        "mu_gap_max": float(gaps.abs().max()),
        "mismatch_kl": float((torch.expm1(gaps) - gaps).mean()),
        "mu_gap_tokens": float(gaps.numel()),
    }


def gap_warning(figures: Mapping[str, float], version: int, most: float) -> str:
    """Return a warning if workers and learner differ by more than `most` nats at the same version; else empty text."""
    gap = figures.get("mu_gap_max", 0.0)
    if gap <= most:
        return ""
    return (
        f"log-probabilities of the workers differ by up to {gap:.3g} nats (mean {figures['mu_gap_mean']:.3g}, "
        f"{figures['mu_gap_tokens']:.0f} tokens) from the learner's at the same version {version}; learner.max_mu_gap "
        f"is {most:g}: check the workers' precision, sampling defaults and weights"
    )


def critic_figures(rows: Sequence[Row], steps: Sequence[UpdateStats]) -> dict[str, float]:
    """Return figures about the critic's error before the update; empty without a critic."""
    if not any(row.targets.size for row in rows):
        return {}
    targets = np.concatenate([row.targets for row in rows]).astype(np.float64)
    values = np.concatenate([row.values for row in rows]).astype(np.float64)
    has_target = ~np.isnan(targets)
    spread = float(targets[has_target].var())
    return {
        "value_loss": sum(step.value_loss for step in steps) / len(steps),
        "explained_variance": 1.0 - float((targets - values)[has_target].var()) / spread if spread > 0.0 else 0.0,
    }


def lag_figures(steps: Sequence[UpdateStats]) -> list[Bucket]:
    """Return figures by staleness, of the tokens with a known version: the marks are clipped and rejected tokens."""
    marks = torch.cat([marks for step in steps for marks in step.marks], 1)
    weights = torch.cat([weight for step in steps for weight in step.weights])
    sampled = marks[3].bool()
    lags, clipped, rejected = marks[:3, sampled]
    return by_lag(lags, weights[sampled], (clipped.bool(), rejected.bool()))


def demonstrated_share(rows: Sequence[Row]) -> float:
    """Return the share of imitated tokens that the policy did not sample: demonstrated, or known as text."""
    imitated = sum(int(np.count_nonzero(row.advantages)) for row in rows)
    return sum(int(np.isnan(row.tokens.logprobs).sum()) for row in rows) / max(1, imitated)


def data_figures(rows: Sequence[Row], groups: Sequence[Sequence[Attempt]], version: int) -> dict[str, float]:
    """Return figures about the trained data of a learner that trains from `version`.

    Staleness covers the tokens with a known version.
    """
    versions = np.concatenate([row.tokens.versions for row in rows])
    lags = (version - versions)[versions != UNVERSIONED]
    rewards = [attempt.reward for group in groups for attempt in group]
    credited = sum(int(np.count_nonzero(row.advantages)) for row in rows)
    return {
        "sequences": float(len(rows)),
        "credited_share": credited / max(1, versions.size),
        "staleness_mean": float(lags.mean()) if lags.size else 0.0,
        "staleness_max": float(lags.max()) if lags.size else 0.0,
        **dict(zip(_LAG_NAMES, lag_shares(torch.from_numpy(lags)), strict=True)),
        "reward": sum(rewards) / len(rewards),
        "restricted_tokens": float(sum(attempt.restricted_tokens for group in groups for attempt in group)),
    }


def summary_of(figures: list[dict[str, float]]) -> dict[str, float]:
    """Combine the figures of several updates: maxima of names in `_max`, sums of counts, means of the others.

    An update may lack some figures.
    """
    summary = {}
    for name in dict.fromkeys(name for figure in figures for name in figure):
        values = [figure[name] for figure in figures if name in figure]
        if name.endswith("_max"):
            summary[name] = max(values)
        elif name in ("tokens", "sequences", "steps_skipped", "restricted_tokens", "mu_gap_tokens"):
            summary[name] = sum(values)
        else:
            summary[name] = sum(values) / len(values)
    return summary
