"""Compute off-policy objectives from log-probabilities of sampled tokens. Pure torch, flat tensors, no [T, V].

An `Objective` combines one ratio, one weight, one clip and any masks; `docs/losses.md` lists them with formulas and
sources. Rules for all of them: advantages, weights and masks carry no gradient; log-ratios are bounded to ±20; values
that are not finite are masked; denominators count the tokens before any rejection.
"""

from stepstream.learner.losses.batch import Batch, token_scales
from stepstream.learner.losses.clips import Cispo, Clip, Ppo, Sapo, SecondMomentRange
from stepstream.learner.losses.masks import Mask, OffPolicySequences, Veto
from stepstream.learner.losses.objective import Objective, Proximal, Reach, Terms
from stepstream.learner.losses.ratios import Level
from stepstream.learner.losses.staleness import LAGS, Bucket, by_lag, effective_share, kl_estimate, lag_shares
from stepstream.learner.losses.weights import Banded, BinaryDivergence, SecondMoment, Truncated, Unweighted, Weight

__all__ = [
    "LAGS",
    "Banded",
    "Batch",
    "BinaryDivergence",
    "Bucket",
    "Cispo",
    "Clip",
    "Level",
    "Mask",
    "Objective",
    "OffPolicySequences",
    "Ppo",
    "Proximal",
    "Reach",
    "Sapo",
    "SecondMoment",
    "SecondMomentRange",
    "Terms",
    "Truncated",
    "Unweighted",
    "Veto",
    "Weight",
    "by_lag",
    "effective_share",
    "kl_estimate",
    "lag_shares",
    "token_scales",
]
