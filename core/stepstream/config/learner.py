"""What learns from the labels: which groups, which advantages, which objective, on which device.

Which choices of the learner's objective contradict each other, and what to choose instead.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from stepstream.config.base import Section

JUDGE_ALONE = frozenset({"reinforce_pp", "ppo_gae", "step_ppo", "vtrace"})
"""Advantage rules that need no group: an attempt is compared with the batch, or with what a critic expected."""

PAYS_TOKENS = frozenset({"reinforce_pp", "reinforce_pp_baseline", "ppo_gae"})
"""Advantage rules that add up what each trained token is rewarded."""


def loss_contradictions(config: "LearnerSettings") -> list[str]:
    """One sentence for each contradiction; none where the choices make sense."""
    found = []
    coupled = config.loss_proximal == "behaviour"
    if config.loss_clip in ("sapo", "m2po") and not coupled:
        found.append(
            f"loss_clip={config.loss_clip} bounds the ratio to the behaviour policy itself: "
            "set loss_proximal=behaviour and loss_weight=none"
        )
    elif coupled and config.loss_weight != "none":
        found.append(
            f"loss_proximal=behaviour leaves nothing for loss_weight={config.loss_weight} to weigh: set loss_weight=none, "
            "or loss_proximal=forward"
        )
    if coupled and "veto" in config.loss_masks:
        found.append("loss_proximal=behaviour leaves nothing for the mask veto to look at: use opsm")
    if config.loss_weight == "none" and config.loss_weight_level != "token":
        found.append("loss_weight=none has no loss_weight_level: leave it at token")
    if config.loss_weight == "kpop" and config.loss_weight_level != "token":
        found.append("loss_weight=kpop judges each token: leave loss_weight_level at token")
    if config.objective in ("dpo", "kto") and config.kl_weight:
        found.append(f"objective={config.objective} keeps near the root by preference_beta: set kl_weight=0")
    if config.objective == "sft" and config.kl_weight:
        found.append("objective=sft has no penalty: set kl_weight=0")
    if config.kl_place == "reward" and config.objective == "policy_gradient" and config.advantage not in PAYS_TOKENS:
        found.append(f"advantage={config.advantage} rewards no single tokens: set kl_place=loss")
    if (
        config.advantage == "vtrace"
        and config.objective == "policy_gradient"
        and (coupled or config.loss_weight != "none")
    ):
        found.append(
            "advantage=vtrace has the ratio to the behaviour policy in its advantages: set loss_weight=none and "
            "loss_proximal=forward"
        )
    compares = "dpo" if config.objective == "dpo" else config.advantage
    alone = config.objective in ("kto", "sft") or compares in JUDGE_ALONE
    if config.group_size < 2 and not alone:
        found.append(f"group_size=1 leaves {compares} nothing to compare an attempt with: set group_size=2 or more")
    if config.weight_low > 1:
        found.append("weight_low above 1 rejects fresh data, whose weight is 1")
    return found


class LearnerSettings(Section):
    """The off-policy learner."""

    model: str = Field("demo", description="Name of the model to train, as on the checkpoints topic.")
    checkpoints: str = Field("", description="Folder for checkpoints; default: DATA/checkpoints.")
    groups_per_update: int = Field(16, ge=1, description="Groups consumed by one update.")
    group_size: int = Field(
        8, ge=1, description="Attempts in one group; 1 only where each attempt is judged by itself."
    )
    group_wait_s: float = Field(30.0, gt=0, description="Seconds after which an incomplete group is given up.")
    updates_per_checkpoint: int = Field(2, ge=1, description="Updates between two published versions.")
    staleness_bound: int = Field(4, ge=0, description="Largest staleness, in versions, of a trajectory trained on.")
    reuse: int = Field(1, ge=1, description="Most updates of one lineage that may train on a group.")
    sampling: Literal["freshest", "weighted"] = Field(
        "freshest",
        description="Which ready groups an update takes: the least stale, or drawn with the weight exp(-lag/τ).",
    )
    sampling_temperature: float = Field(1.0, gt=0, description="τ of weighted sampling, in versions.")
    tenant_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Largest share of an update's groups that may be one tenant's (one group may always be); below 1 "
        "an update waits until there are groups of enough tenants.",
    )
    near_duplicate_cap: int = Field(
        0, ge=0, description="Most groups of an update that are nearly alike, by their labels' MinHash; 0: any number."
    )
    near_duplicate_similarity: float = Field(
        0.9, gt=0, le=1, description="Jaccard similarity of two groups' texts from which they are nearly alike."
    )
    advantage: Literal[
        "rloo",
        "grpo",
        "dr_grpo",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "step_gae",
        "gigpo",
        "hgpo",
        "stratified",
        "salt",
        "tree_grpo",
        "shadow",
        "ppo_gae",
        "step_ppo",
        "vtrace",
        "hcapo",
    ] = Field("dr_grpo", description="Advantage rule, as docs/credit.md has them.")
    credit_discount: float = Field(
        0.95,
        ge=0,
        le=1,
        description="Discount γ from step to step, of step_gae, gigpo, hgpo, shadow, step_ppo, vtrace and hcapo.",
    )
    credit_trace: float = Field(
        0.95,
        ge=0,
        le=1,
        description="λ of step_gae, shadow and step_ppo, from step to step; of ppo_gae from token to token.",
    )
    credit_step_weight: float = Field(
        1.0, ge=0, description="Weight ω of what gigpo and hcapo say of a step, beside the outcome's."
    )
    credit_history: int = Field(2, ge=0, description="Most earlier observations K that hgpo's groups have in common.")
    credit_blend: float = Field(
        0.8, ge=0, le=1, description="Share α of the own stratum in stratified; the rest compares the whole group."
    )
    credit_stratum: Literal["tools", "steps", "tokens"] = Field(
        "tools",
        description="What stratified compares like with like by: the number of tool calls, the number of steps, or the "
        "trained tokens, in bands that double.",
    )
    credit_hindsight: str = Field(
        "policy",
        description="Who tells hcapo in hindsight how likely each step was: the policy itself, or a critic of an "
        "installed package, by its name.",
    )
    critic_rate: float = Field(
        0.2,
        gt=0,
        description="AdamW's step size for the critic of ppo_gae, step_ppo and vtrace: about the most by which one of "
        "its steps moves a value, in reward.",
    )
    critic_clip: float = Field(
        0.0, ge=0, description="By how much, in reward, an update may usefully move a value, as PPO clips; 0: no bound."
    )
    learning_rate: float = Field(3e-4, gt=0, description="AdamW's step size.")
    warmup_updates: int = Field(5, ge=0, description="Updates over which the rate rises from 0.")
    decay_updates: int = Field(0, ge=0, description="Updates over which the rate falls to a tenth; 0: constant.")
    minibatches: int = Field(2, ge=1, description="Gradient steps of one update.")
    microbatch_tokens: int = Field(
        4096, ge=1, description="Most tokens of one forward pass, a shared beginning counted once; bounds memory."
    )
    loss_length: int = Field(
        64, ge=1, description="Trained tokens by which dr_grpo divides a sequence's loss, however long it is."
    )
    clip_low: float = Field(0.2, gt=0, description="The current policy's ratio is clipped below at 1 - this.")
    clip_high: float = Field(0.28, gt=0, description="The current policy's ratio is clipped above at 1 + this.")
    importance_cap: float = Field(2.0, gt=0, description="Cap C of the truncated importance weight.")
    dual_clip: float = Field(3.0, gt=1, description="Bound c of the dual clip for negative advantages.")
    loss_ratio: Literal["token", "sequence", "step"] = Field(
        "token", description="What shares one ratio: each token, a sequence (GSPO) or a step."
    )
    loss_proximal: Literal["forward", "behaviour", "interpolated"] = Field(
        "forward",
        description="Proximal policy: a forward pass before the update, the behaviour policy (not decoupled), or a "
        "guess between behaviour and current by their versions.",
    )
    loss_weight: Literal["tis", "icepop", "kpop", "m2po", "none"] = Field(
        "tis", description="Importance weight of stale tokens, as docs/losses.md has them."
    )
    loss_weight_level: Literal["token", "sequence", "step"] = Field(
        "token", description="What shares one importance weight, as the geometric mean of its tokens' weights."
    )
    loss_clip: Literal["ppo", "cispo", "sapo", "m2po"] = Field(
        "ppo", description="What bounds a token's gain, as docs/losses.md has them."
    )
    loss_masks: list[Literal["opsm", "veto"]] = Field(
        [], description="Which sequences are left out: gone off-policy (opsm), unlikely token (veto); comma-separated."
    )
    weight_low: float = Field(0.5, gt=0, description="icepop rejects weights below this; at most 1.")
    weight_high: float = Field(5.0, ge=1, description="icepop rejects weights above this.")
    kpop_bound: float = Field(2.0, gt=0, description="kpop rejects tokens of which the policies differ by more nats.")
    m2po_budget: float = Field(0.04, gt=0, description="Mean of squared log-ratios that m2po allows, in nats².")
    cispo_cap: float = Field(5.0, gt=0, description="Cap of the ratio that weighs a token under cispo.")
    sapo_positive: float = Field(1.0, gt=0, description="Sharpness of sapo's gate for positive advantages.")
    sapo_negative: float = Field(1.05, gt=0, description="Sharpness of sapo's gate for the others.")
    opsm_bound: float = Field(0.5, gt=0, description="opsm: nats a token by which the policy may have moved away.")
    veto_floor: float = Field(1e-4, gt=0, lt=1, description="veto: smallest importance weight in a sequence.")
    objective: Literal["policy_gradient", "dpo", "kto", "sft"] = Field(
        "policy_gradient",
        description="What is learned from groups: advantages times ratios; which attempt was better (dpo); which were "
        "good (kto); or to imitate those that succeeded (sft). The settings `loss_…` and `advantage` are "
        "policy_gradient's.",
    )
    preference_beta: float = Field(0.1, gt=0, description="β of dpo and kto: how dear distance from the root is.")
    preference_margin: float = Field(
        0.0, ge=0, description="dpo: two attempts of a group are a pair if their rewards differ by more than this."
    )
    preference_good: float = Field(1.0, gt=0, description="kto: weight λ_D of attempts that succeeded.")
    preference_bad: float = Field(1.0, gt=0, description="kto: weight λ_U of the others.")
    kl_weight: float = Field(
        0.0,
        ge=0,
        description="Weight β of KL(θ‖root of the lineage) in the objective, in reward a nat; above 0 a frozen copy of "
        "the root is kept in memory, unless there are adapters.",
    )
    kl_place: Literal["loss", "reward"] = Field(
        "loss",
        description="Where that penalty stands: in the loss, or in what each trained token is rewarded "
        "(reinforce_pp, reinforce_pp_baseline, ppo_gae).",
    )
    entropy_bonus: float = Field(0.0, ge=0, description="Weight of the policy's entropy in the objective, per nat.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to this norm.")
    lora_rank: int = Field(0, ge=0, description="Rank of the adapters that are trained; 0: all weights are trained.")
    lora_alpha: float = Field(16.0, gt=0, description="Adapters count this times, divided by their rank.")
    lora_targets: list[str] = Field(
        [], description="Names of the layers with adapters, as q_proj; default: every linear layer; comma-separated."
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="Where the model is trained; only on the CPU does the same log give the same bits."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Precision of the forward pass; weights, their optimizer and log-softmax stay in float32.",
    )
    activation_checkpointing: bool = Field(
        False, description="Keep each layer's input only and compute the rest again: less memory, a third more work."
    )
    compile: bool = Field(
        False,
        description="Compile the model's layers when they are first used: minutes on a CPU; needs a C++ compiler.",
    )
    threads: int = Field(1, ge=1, description="CPU threads of the learner.")
    seed: int = Field(0, description="Seed of everything random in the learner.")

    @model_validator(mode="after")
    def _objective_makes_sense(self) -> Self:
        if contradictions := loss_contradictions(self):
            raise ValueError("; ".join(contradictions))
        return self
