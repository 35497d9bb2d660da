"""Settings of the learner, with a check for objective settings that contradict each other."""

from typing import Any, Literal, Self

from pydantic import model_validator

from stepstream.config.base import Section, setting
from stepstream.config.presets import Preset, with_preset

UNGROUPED_RULES = frozenset({"reinforce_pp", "ppo_gae", "step_ppo", "vtrace"})
"""Advantage rules that need no group: the baseline is the batch or a critic."""

TOKEN_REWARD_RULES = frozenset({"reinforce_pp", "reinforce_pp_baseline", "ppo_gae"})
"""Advantage rules that sum the rewards of single tokens."""


class LearnerSettings(Section):
    """The off-policy learner. Symbols and rules as in docs/learner.md, docs/credit.md and docs/losses.md."""

    model: str = setting("demo", "Model to train, by its name on the topic `checkpoints`.")
    preset: Preset = setting(
        "auto",
        "Values for settings that are not given: `tiny` for toy models on a CPU, `lora` for adapters, `full` for all "
        "weights of a real model; `auto`: `lora` if `lora_rank` is above 0, else `full`. See docs/learner.md.",
    )
    checkpoints: str = setting(
        "", "Folder or fsspec address (as `s3://bucket/prefix`) for checkpoints; default: `DATA/checkpoints`."
    )
    version_format: Literal["full", "lora", "delta"] = setting(
        "full",
        "Form of published versions: all weights, only the adapters (with `lora_rank`), or the bytes changed since "
        "the parent. A form that does not fit a version becomes `full`.",
    )
    full_every: int = setting(
        10, "Versions from one that has all weights to the next in the form `delta`.", unit="versions", ge=1
    )
    keep_versions: int = setting(
        0,
        "Newest versions whose files retention keeps, beside those in use and what they need; 0: all. The learner "
        "removes the others after each version, and `stepstream models prune` on demand.",
        unit="versions",
        ge=0,
    )
    keep_training: int = setting(
        3, "Newest versions whose training state retention keeps; 0: all.", unit="versions", ge=0
    )
    shared_memory_bytes: int = setting(
        0,
        "Limit of the newest versions that the learner also keeps in `paths.shared_memory`, for workers on its "
        "machine. It counts as the learner's memory; 0: none.",
        unit="bytes",
        ge=0,
    )
    version_cache_bytes: int = setting(
        50 * 1024**3,
        "Limit of each model's versions in `DATA/version-cache/learner`, which were downloaded or completed from their "
        "base; what was used longest ago goes first, never what is in use.",
        unit="bytes",
        ge=0,
    )
    stop_wait_s: float = setting(
        20.0,
        "Time that a stopped learner waits for a version in publication; a restart repeats the updates of one that is "
        "not durable by then. The embedded stack kills a process 30 s after its stop.",
        unit="s",
        ge=0,
    )
    signing_key: str = setting(
        "", "File of the private key that signs versions; `stepstream models keygen` creates it. Empty: unsigned."
    )
    groups_per_update: int = setting(16, "Groups in one update.", unit="groups", ge=1)
    group_size: int = setting(8, "Attempts in one group; 1 only if the rule needs no group.", unit="attempts", ge=1)
    group_wait_s: float = setting(1800.0, "Time after which an incomplete group is dropped.", unit="s", gt=0)
    updates_per_checkpoint: int = setting(1, "Updates between two published versions.", unit="updates", ge=1)
    staleness_bound: int = setting(4, "Largest staleness of a trajectory in an update.", unit="versions", ge=0)
    reuse: int = setting(1, "Largest number of updates of one lineage that train on a group.", unit="updates", ge=1)
    sampling: Literal["freshest", "weighted"] = setting(
        "freshest", "Choice among ready groups: the least stale, or sampled with the weight exp(-staleness/τ)."
    )
    sampling_temperature: float = setting(1.0, "τ of weighted sampling.", unit="versions", gt=0)
    tenant_share: float = setting(
        1.0,
        "Largest share of an update's groups from one tenant; one group is always allowed. Below 1, an update waits "
        "for groups of enough tenants.",
        unit="share",
        gt=0,
        le=1,
    )
    read_ahead_mb: int = setting(
        256, "Largest memory of decoded tokens that the reader holds ahead of the learner.", unit="MB", ge=1
    )
    reader: Literal["process", "thread"] = setting(
        "process",
        "Where labelled trajectories are decoded: in a process of their own, or in a thread of the learner's process, "
        "which shares its interpreter with the training.",
    )
    ready_mb: int = setting(
        4096,
        "Memory of the tokens of ready groups above which the learner reads no more before its next update.",
        unit="MB",
        ge=1,
    )
    near_duplicate_cap: int = setting(
        0, "Largest number of near-duplicate groups in an update, by MinHash; 0: unlimited.", unit="groups", ge=0
    )
    near_duplicate_similarity: float = setting(
        0.9, "Jaccard similarity of texts from which two groups are near-duplicates.", gt=0, le=1
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
    ] = setting("dr_grpo", "Advantage rule; see docs/credit.md.")
    credit_discount: float = setting(
        0.95, "Discount γ per step in step_gae, gigpo, hgpo, shadow, step_ppo, vtrace and hcapo.", ge=0, le=1
    )
    credit_trace: float = setting(
        0.95, "Trace decay λ: per step in step_gae, shadow and step_ppo, per token in ppo_gae.", ge=0, le=1
    )
    credit_step_weight: float = setting(
        1.0, "Weight ω of the step advantage in gigpo and hcapo, beside the outcome's advantage.", ge=0
    )
    credit_history: int = setting(
        2, "Largest number K of earlier observations that a group of hgpo shares.", unit="observations", ge=0
    )
    credit_blend: float = setting(
        0.8, "Weight α of the attempt's own stratum in stratified; the rest compares the whole group.", ge=0, le=1
    )
    credit_stratum: Literal["tools", "steps", "tokens"] = setting(
        "tools",
        "Strata of stratified: by number of tool calls, by number of steps, or by trained tokens in powers of 2.",
    )
    credit_hindsight: str = setting(
        "policy",
        "Source of hcapo's hindsight probability of a step: `policy` for the policy itself, or the name of a critic "
        "from an installed package.",
    )
    critic_rate: float = setting(
        0.2,
        "AdamW's step size for the critic of ppo_gae, step_ppo and vtrace: roughly the largest change of a value in "
        "one optimizer step.",
        unit="reward",
        gt=0,
    )
    critic_clip: float = setting(
        0.0, "Largest useful change of a value in an update, as in PPO's value clip; 0: unlimited.", unit="reward", ge=0
    )
    learning_rate: float = setting(1e-6, "AdamW's step size.", gt=0)
    warmup_updates: int = setting(10, "Updates over which the learning rate rises from 0.", unit="updates", ge=0)
    decay_updates: int = setting(
        0, "Updates over which the learning rate falls after the warm-up; 0: constant.", unit="updates", ge=0
    )
    decay_shape: Literal["linear", "cosine"] = setting("linear", "Shape of the fall over `decay_updates`.")
    final_rate: float = setting(
        0.1, "Learning rate after the decay, as a share of `learning_rate`.", unit="share", ge=0, le=1
    )
    weight_decay: float = setting(
        0.01, "AdamW's weight decay of matrices; biases, norms and the critic have none.", unit="per step size", ge=0
    )
    adam_beta1: float = setting(0.9, "Decay β₁ of AdamW's mean of gradients.", ge=0, lt=1)
    adam_beta2: float = setting(0.999, "Decay β₂ of AdamW's mean of squared gradients.", ge=0, lt=1)
    adam_epsilon: float = setting(1e-8, "Term ε that AdamW adds to the root of the mean of squared gradients.", gt=0)
    optimizer: Literal["adamw", "adamw_8bit"] = setting(
        "adamw", "Optimizer; `adamw_8bit` keeps its moments in 8 bits and needs a GPU and the package torchao."
    )
    optimizer_offload: bool = setting(False, "Keep the optimizer's moments in host memory and step there: for GPUs.")
    minibatches: int = setting(2, "Optimizer steps in one update.", unit="steps", ge=1)
    microbatch_tokens: int = setting(
        8192,
        "Token limit of one forward pass, which bounds memory. A shared prefix counts once.",
        unit="tokens",
        ge=1,
    )
    loss_length: int = setting(
        4096, "Fixed length by which dr_grpo divides the loss of each sequence.", unit="tokens", ge=1
    )
    clip_low: float = setting(0.2, "Lower clip: the ratio of the current policy is clipped at 1 - this.", gt=0)
    clip_high: float = setting(0.28, "Upper clip: the ratio of the current policy is clipped at 1 + this.", gt=0)
    importance_cap: float = setting(2.0, "Cap C of the truncated importance weight.", gt=0)
    dual_clip: float = setting(3.0, "Bound c of the dual clip for negative advantages.", gt=1)
    loss_ratio: Literal["token", "sequence", "step"] = setting(
        "token", "Scope of one policy ratio: a token, a sequence (GSPO) or a step."
    )
    loss_proximal: Literal["forward", "behaviour", "interpolated"] = setting(
        "forward",
        "Proximal policy: a forward pass before the update, the behaviour policy (not decoupled), or an interpolation "
        "between behaviour and current policy by their versions.",
    )
    loss_weight: Literal["tis", "icepop", "kpop", "m2po", "none"] = setting(
        "tis", "Importance weight of stale tokens; see docs/losses.md."
    )
    loss_weight_level: Literal["token", "sequence", "step"] = setting(
        "token", "Scope of one importance weight; larger scopes use the geometric mean of the token weights."
    )
    loss_clip: Literal["ppo", "cispo", "sapo", "m2po"] = setting(
        "ppo", "Rule that bounds the gain of a token; see docs/losses.md."
    )
    loss_masks: list[Literal["opsm", "veto"]] = setting(
        [],
        "Masks that exclude sequences, separated by commas: off-policy drift (`opsm`), an unlikely token (`veto`).",
    )
    weight_low: float = setting(0.5, "Weight below which icepop rejects a token; at most 1.", gt=0)
    weight_high: float = setting(5.0, "Weight above which icepop rejects a token.", ge=1)
    kpop_bound: float = setting(
        2.0, "Log-probability difference of the policies above which kpop rejects a token.", unit="nats", gt=0
    )
    m2po_budget: float = setting(0.04, "Largest mean of squared log-ratios in m2po.", unit="nats²", gt=0)
    cispo_cap: float = setting(5.0, "Cap of the ratio that weights a token in cispo.", gt=0)
    sapo_positive: float = setting(1.0, "Sharpness of sapo's gate for positive advantages.", gt=0)
    sapo_negative: float = setting(1.05, "Sharpness of sapo's gate for zero and negative advantages.", gt=0)
    opsm_bound: float = setting(0.5, "Policy drift above which opsm excludes a sequence.", unit="nats per token", gt=0)
    veto_floor: float = setting(
        1e-4, "Importance weight of a token below which veto excludes its sequence.", gt=0, lt=1
    )
    objective: Literal["policy_gradient", "dpo", "kto", "sft"] = setting(
        "policy_gradient",
        "Objective: advantages times ratios (`policy_gradient`), better against worse attempts (`dpo`), good against "
        "bad ones (`kto`), or imitation of successful ones (`sft`). The settings `loss_…` and `advantage` apply to "
        "`policy_gradient` only.",
    )
    preference_beta: float = setting(0.1, "β of dpo and kto: the penalty for distance from the root.", gt=0)
    preference_margin: float = setting(
        0.0, "Reward difference above which two attempts of a group form a pair in dpo.", unit="reward", ge=0
    )
    preference_good: float = setting(1.0, "Weight λ_D of successful attempts in kto.", gt=0)
    preference_bad: float = setting(1.0, "Weight λ_U of the other attempts in kto.", gt=0)
    kl_weight: float = setting(
        0.0,
        "Weight β of KL(θ‖root of the lineage) in the objective. Above 0, the learner keeps a frozen copy of the root "
        "in memory, unless it trains adapters.",
        unit="reward per nat",
        ge=0,
    )
    kl_place: Literal["loss", "reward"] = setting(
        "loss",
        "Place of the KL penalty: in the loss, or in the reward of each trained token (reinforce_pp, "
        "reinforce_pp_baseline, ppo_gae).",
    )
    entropy_bonus: float = setting(0.0, "Weight of the policy's entropy in the objective.", unit="reward per nat", ge=0)
    max_mu_gap: float = setting(
        1.0,
        "Difference between the workers' log-probability of a token and the learner's at the same version and "
        "temperature, above which an update is logged as a warning and counted. float32 on both sides: below 0.001.",
        unit="nats",
        gt=0,
    )
    max_grad_norm: float = setting(1.0, "Norm to which larger gradients are scaled down.", gt=0)
    lora_rank: int = setting(0, "Rank of the trained adapters; 0: train all weights.", ge=0)
    lora_alpha: float = setting(16.0, "Scale α of the adapters: their output counts α / rank times.", gt=0)
    lora_targets: list[str] = setting(
        [], "Layers with adapters, as `q_proj`, separated by commas; empty: every linear layer."
    )
    device: Literal["cpu", "cuda"] = setting(
        "cpu", "Device of the model. The same log gives the same bits on the CPU only."
    )
    reproducible: bool = setting(
        True,
        "On a CPU, give the same bits for the same log on any power of two of ranks. False, and always on a GPU: any "
        "number of ranks, weights gathered in `precision`, gradients summed in any order.",
    )
    shard_ranks: int = setting(
        0,
        "Ranks that share one copy of the weights, as those of one node; further ranks hold copies (hybrid sharding). "
        "0: all ranks share one copy. Needs `reproducible` = false or a GPU.",
        unit="ranks",
        ge=0,
    )
    sequence_parallel: int = setting(
        1,
        "Consecutive ranks that share the tokens of each forward pass, for long contexts: they divide its activations "
        "and exchange tokens for attention heads, whose number this must divide. Needs `reproducible` = false or a "
        "GPU.",
        unit="ranks",
        ge=1,
    )
    gradient_sync: Literal["step", "pass"] = setting(
        "step",
        "Time at which ranks sum their gradients, if bits are not promised: once an optimizer step, which keeps whole "
        "gradients in memory, or after each forward pass.",
    )
    reference_offload: bool = setting(
        False,
        "Keep the weights of the reference policy in host memory, and copy each layer to the GPU for its use.",
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32", "Precision of the forward pass. Weights, optimizer and log-softmax stay in float32."
    )
    activation_checkpointing: bool = setting(
        True, "Keep each layer's input only and recompute the rest: less memory, a third more computation."
    )
    compile: bool = setting(
        False, "Compile the model's layers at first use. It takes minutes on a CPU and needs a C++ compiler."
    )
    threads: int = setting(1, "CPU threads of the learner.", unit="threads", ge=1)
    seed: int = setting(0, "Seed of all random choices of the learner.")

    @property
    def read_ahead_bytes(self) -> int:
        """`read_ahead_mb` in bytes."""
        return self.read_ahead_mb * 1_000_000

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        return with_preset(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _reject_contradictions(self) -> Self:
        if contradictions := loss_contradictions(self):
            raise ValueError("; ".join(contradictions))
        return self


def loss_contradictions(config: LearnerSettings) -> list[str]:
    """Return one sentence with the remedy for each contradiction between settings of the objective; empty: none."""
    contradictions = []
    coupled = config.loss_proximal == "behaviour"
    if config.loss_clip in ("sapo", "m2po") and not coupled:
        contradictions.append(
            f"loss_clip={config.loss_clip} bounds the ratio to the behaviour policy itself: "
            "set loss_proximal=behaviour and loss_weight=none"
        )
    elif coupled and config.loss_weight != "none":
        contradictions.append(
            f"loss_proximal=behaviour leaves nothing for loss_weight={config.loss_weight} to weigh: "
            "set loss_weight=none, or loss_proximal=forward"
        )
    if coupled and "veto" in config.loss_masks:
        contradictions.append("loss_proximal=behaviour leaves nothing for the mask veto to check: use opsm")
    if config.loss_weight == "none" and config.loss_weight_level != "token":
        contradictions.append("loss_weight=none has no loss_weight_level: set loss_weight_level=token")
    if config.loss_weight == "kpop" and config.loss_weight_level != "token":
        contradictions.append("loss_weight=kpop tests single tokens: set loss_weight_level=token")
    if config.objective in ("dpo", "kto") and config.kl_weight:
        contradictions.append(f"objective={config.objective} stays near the root by preference_beta: set kl_weight=0")
    if config.objective == "sft" and config.kl_weight:
        contradictions.append("objective=sft has no penalty: set kl_weight=0")
    if (
        config.kl_place == "reward"
        and config.objective == "policy_gradient"
        and config.advantage not in TOKEN_REWARD_RULES
    ):
        contradictions.append(f"advantage={config.advantage} rewards no single tokens: set kl_place=loss")
    if (
        config.advantage == "vtrace"
        and config.objective == "policy_gradient"
        and (coupled or config.loss_weight != "none")
    ):
        contradictions.append(
            "advantage=vtrace contains the ratio to the behaviour policy in its advantages: set loss_weight=none and "
            "loss_proximal=forward"
        )
    rule = "dpo" if config.objective == "dpo" else config.advantage
    is_ungrouped = config.objective in ("kto", "sft") or rule in UNGROUPED_RULES
    if config.group_size < 2 and not is_ungrouped:
        contradictions.append(
            f"group_size=1 leaves {rule} nothing to compare an attempt with: set group_size=2 or more"
        )
    if config.optimizer == "adamw_8bit" and config.device != "cuda":
        contradictions.append("optimizer=adamw_8bit needs a GPU: set device=cuda, or optimizer=adamw")
    if config.optimizer == "adamw_8bit" and config.optimizer_offload:
        contradictions.append("optimizer_offload=true steps in host memory, in float32: set optimizer=adamw")
    if config.shard_ranks and config.device == "cpu" and config.reproducible:
        contradictions.append(
            f"shard_ranks={config.shard_ranks} sums gradients in another order: set reproducible=false, or "
            "shard_ranks=0"
        )
    if config.sequence_parallel > 1 and config.device == "cpu" and config.reproducible:
        contradictions.append(
            f"sequence_parallel={config.sequence_parallel} sums gradients in another order: set reproducible=false, or "
            "sequence_parallel=1"
        )
    if config.weight_low > 1:
        contradictions.append(f"weight_low={config.weight_low:g} rejects fresh data, whose weight is 1: set 1 or less")
    return contradictions
