"""Combine a ratio, a weight, a clip and masks to the objective of each token.

It involves three policies (decoupled PPO, arXiv 2110.00641 and 2505.24298): μ, the behaviour policy that sampled the
token under its own version of the weights; p, the proximal policy, which is the learner's at the start of an update;
θ, the trained policy.

    w̃ = weight of w = p/μ         corrects for stale data, carries no gradient
    r = θ/p, clipped               keeps the update near p
    J = w̃ · clip(r, A)            0 where masked or not finite
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from stepstream.learner.losses.batch import Batch
from stepstream.learner.losses.clips import Clip, Ppo, SecondMomentRange
from stepstream.learner.losses.masks import Mask
from stepstream.learner.losses.ratios import Level, log_ratio, mean_over, shared
from stepstream.learner.losses.regularizers import entropy_bonus, penalty
from stepstream.learner.losses.staleness import interpolated_proximal
from stepstream.learner.losses.weights import SecondMoment, Truncated, Weight

Proximal = Literal["forward", "behaviour", "interpolated"]
"""Source of p: a forward pass at the update's start; μ itself, so that w is 1; an interpolation between μ and θ."""

Reach = Literal["row", "sequence", "minibatch"]
"""Range of tokens on which a token's objective depends: its training sequence, which contains whole steps; its
response, which may have several sequences; or all tokens of a gradient step."""

_ENTROPY_CAP = 2.0
"""Cap of the importance weight in the entropy bonus."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The objective of each token, and masks for statistics. Every tensor has the shape [tokens]."""

    objective: Tensor
    """J, with gradient; 0 if the token is rejected or a log-probability is not finite."""
    weight: Tensor
    """w of the token itself before truncation (θ/μ where p is μ), detached; 0 if not finite."""
    clipped: Tensor
    """True where clipping changed the gradient. Bool."""
    capped: Tensor
    """True where the weight was truncated. Bool."""
    rejected: Tensor
    """True where a weight of 0 or a mask excluded the token. Bool."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The maximised objective. Default: the decoupled clipped objective with truncated weights, by token."""

    ratio: Level = "token"
    """Unit that shares one ratio θ/p."""
    proximal: Proximal = "forward"
    weight: Weight = field(default_factory=Truncated)
    weight_level: Level = "token"
    """Unit that shares one weight: w is the geometric mean over it."""
    clip: Clip = field(default_factory=Ppo)
    masks: tuple[Mask, ...] = ()
    kl: float = 0.0
    """β of the penalty for distance from the reference, in reward per nat."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus, in reward per nat."""

    @property
    def reach(self) -> Reach:
        """Unit that a batch must contain whole for `terms` to be correct."""
        if isinstance(self.weight, SecondMoment) or isinstance(self.clip, SecondMomentRange):
            return "minibatch"
        return "sequence" if self.masks or "sequence" in (self.ratio, self.weight_level) else "row"

    def terms(self, batch: Batch) -> Terms:
        """Return the objective of each token.

        Raises:
            ValueError: the batch lacks what the objective needs.
        """
        advantage, current = batch.advantage.detach(), batch.current
        behaviour = batch.behaviour.detach()
        proximal = self._proximal(batch, behaviour)
        log_w, known = log_ratio(proximal, behaviour)
        log_r, finite = log_ratio(current, proximal)
        valid = known & finite
        w, zero = log_w.exp(), log_w.new_zeros(())
        if self.ratio != "token":
            log_r = shared(log_r, batch.segments(self.ratio), valid)
        shared_w = log_w
        if self.weight_level != "token":
            shared_w = mean_over(log_w, batch.segments(self.weight_level), valid)
        weight = self.weight(shared_w, proximal, behaviour, valid)
        term, clipped = self.clip(log_r, current, advantage, valid)
        keep = valid
        for mask in self.masks:
            keep = keep & mask(batch, log_w, valid)
        objective = torch.where(keep, weight * term, zero)
        if self.kl or self.entropy:
            objective = objective + self._regularised(batch, valid)
        if self.proximal == "behaviour":
            w = log_ratio(current.detach(), behaviour)[0].exp()
        rejected = valid & (~keep | (weight == 0))
        truncated = shared_w.exp() > weight if isinstance(self.weight, Truncated) else torch.zeros_like(valid)
        return Terms(
            objective=objective,
            weight=torch.where(valid, w, zero),
            clipped=clipped & valid & ~rejected,
            capped=truncated & valid & ~rejected,
            rejected=rejected,
        )

    def _proximal(self, batch: Batch, behaviour: Tensor) -> Tensor:
        if self.proximal == "behaviour":
            return behaviour
        if self.proximal == "interpolated":
            if batch.versions is None:
                raise ValueError("an interpolated proximal policy needs the batch's `versions`")
            return interpolated_proximal(batch.current, behaviour, batch.versions, batch.version)
        if batch.proximal is None:
            raise ValueError("the proximal policy's log-probabilities are missing: `proximal`")
        return batch.proximal.detach()

    def _regularised(self, batch: Batch, valid: Tensor) -> Tensor:
        """Return the KL and entropy terms; they apply to clipped and rejected tokens too, since they concern only θ."""
        zero = batch.current.new_zeros(())
        current = torch.where(valid, batch.current, zero)
        total = torch.zeros_like(current)
        if self.entropy:
            log_q, _ = log_ratio(current, batch.behaviour.detach())
            total = total + self.entropy * entropy_bonus(current, log_q, _ENTROPY_CAP)
        if self.kl:
            if batch.reference is None:
                raise ValueError("a KL penalty needs the batch's `reference`")
            total = total - self.kl * penalty("off_policy_loss", current, batch.reference, batch.behaviour)
        return torch.where(valid, total, zero)
