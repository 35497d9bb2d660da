"""The objective that the configuration names; `config.sections.Learner` refuses choices that contradict each other."""

from stepstream.config import LearnerSettings
from stepstream.learner.losses.clips import Cispo, Clip, Ppo, Sapo, SecondMomentRange
from stepstream.learner.losses.masks import Mask, OffPolicySequences, Veto
from stepstream.learner.losses.objective import Objective
from stepstream.learner.losses.weights import Banded, BinaryDivergence, SecondMoment, Truncated, Unweighted, Weight


def objective_of(how: LearnerSettings) -> Objective:
    """The objective with the learner's settings."""
    weights: dict[str, Weight] = {
        "tis": Truncated(how.importance_cap),
        "icepop": Banded(how.weight_low, how.weight_high),
        "kpop": BinaryDivergence(how.kpop_bound),
        "m2po": SecondMoment(how.m2po_budget),
        "none": Unweighted(),
    }
    clips: dict[str, Clip] = {
        "ppo": Ppo(how.clip_low, how.clip_high, how.dual_clip),
        "cispo": Cispo(how.cispo_cap),
        "sapo": Sapo(how.sapo_positive, how.sapo_negative),
        "m2po": SecondMomentRange(how.m2po_budget, how.clip_low, how.clip_high),
    }
    masks: dict[str, Mask] = {"opsm": OffPolicySequences(how.opsm_bound), "veto": Veto(how.veto_floor)}
    return Objective(
        ratio=how.loss_ratio,
        proximal=how.loss_proximal,
        weight=weights[how.loss_weight],
        weight_level=how.loss_weight_level,
        clip=clips[how.loss_clip],
        masks=tuple(masks[name] for name in how.loss_masks),
        kl=how.kl_weight if how.kl_place == "loss" else 0.0,
        entropy=how.entropy_bonus,
    )
