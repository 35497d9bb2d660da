"""Which choices of the learner's objective contradict each other, and what to choose instead."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepstream.config.sections import Learner

JUDGE_ALONE = frozenset({"reinforce_pp", "ppo_gae", "step_ppo", "vtrace"})
"""Advantage rules that need no group: an attempt is compared with the batch, or with what a critic expected."""

PAYS_TOKENS = frozenset({"reinforce_pp", "reinforce_pp_baseline", "ppo_gae"})
"""Advantage rules that add up what each trained token is rewarded."""


def loss_contradictions(how: "Learner") -> list[str]:
    """One sentence for each contradiction; none where the choices make sense."""
    found = []
    coupled = how.loss_proximal == "behaviour"
    if how.loss_clip in ("sapo", "m2po") and not coupled:
        found.append(
            f"loss_clip={how.loss_clip} bounds the ratio to the behaviour policy itself: "
            "set loss_proximal=behaviour and loss_weight=none"
        )
    elif coupled and how.loss_weight != "none":
        found.append(
            f"loss_proximal=behaviour leaves nothing for loss_weight={how.loss_weight} to weigh: set loss_weight=none, "
            "or loss_proximal=forward"
        )
    if coupled and "veto" in how.loss_masks:
        found.append("loss_proximal=behaviour leaves nothing for the mask veto to look at: use opsm")
    if how.loss_weight == "none" and how.loss_weight_level != "token":
        found.append("loss_weight=none has no loss_weight_level: leave it at token")
    if how.loss_weight == "kpop" and how.loss_weight_level != "token":
        found.append("loss_weight=kpop judges each token: leave loss_weight_level at token")
    if how.objective in ("dpo", "kto") and how.kl_weight:
        found.append(f"objective={how.objective} keeps near the root by preference_beta: set kl_weight=0")
    if how.objective == "sft" and how.kl_weight:
        found.append("objective=sft has no penalty: set kl_weight=0")
    if how.kl_place == "reward" and how.objective == "policy_gradient" and how.advantage not in PAYS_TOKENS:
        found.append(f"advantage={how.advantage} rewards no single tokens: set kl_place=loss")
    if how.advantage == "vtrace" and how.objective == "policy_gradient" and (coupled or how.loss_weight != "none"):
        found.append(
            "advantage=vtrace has the ratio to the behaviour policy in its advantages: set loss_weight=none and "
            "loss_proximal=forward"
        )
    compares = "dpo" if how.objective == "dpo" else how.advantage
    alone = how.objective in ("kto", "sft") or compares in JUDGE_ALONE
    if how.group_size < 2 and not alone:
        found.append(f"group_size=1 leaves {compares} nothing to compare an attempt with: set group_size=2 or more")
    if how.weight_low > 1:
        found.append("weight_low above 1 rejects fresh data, whose weight is 1")
    return found
