"""Create the objective that the settings name; `LearnerSettings` rejects contradicting choices."""

from stepstream.config import LearnerSettings
from stepstream.learner.losses.clips import Cispo, Clip, Ppo, Sapo, SecondMomentRange
from stepstream.learner.losses.masks import Mask, OffPolicySequences, Veto
from stepstream.learner.losses.objective import Objective
from stepstream.learner.losses.weights import Banded, BinaryDivergence, SecondMoment, Truncated, Unweighted, Weight


def objective_of(config: LearnerSettings) -> Objective:
    """Return the objective of the learner's settings."""
    weights: dict[str, Weight] = {
        "tis": Truncated(config.importance_cap),
        "icepop": Banded(config.weight_low, config.weight_high),
        "kpop": BinaryDivergence(config.kpop_bound),
        "m2po": SecondMoment(config.m2po_budget),
        "none": Unweighted(),
    }
    clips: dict[str, Clip] = {
        "ppo": Ppo(config.clip_low, config.clip_high, config.dual_clip),
        "cispo": Cispo(config.cispo_cap),
        "sapo": Sapo(config.sapo_positive, config.sapo_negative),
        "m2po": SecondMomentRange(config.m2po_budget, config.clip_low, config.clip_high),
    }
    masks: dict[str, Mask] = {"opsm": OffPolicySequences(config.opsm_bound), "veto": Veto(config.veto_floor)}
    return Objective(
        ratio=config.loss_ratio,
        proximal=config.loss_proximal,
        weight=weights[config.loss_weight],
        weight_level=config.loss_weight_level,
        clip=clips[config.loss_clip],
        masks=tuple(masks[name] for name in config.loss_masks),
        kl=config.kl_weight if config.kl_place == "loss" else 0.0,
        entropy=config.entropy_bonus,
    )
