"""List the reasons for which a learner drops a labelled trajectory, with an explanation and a remedy for each. Pure.

The reason goes to the topic `training-decisions` (`decisions.py`); `stepstream explain` prints these texts.
"""

from dataclasses import dataclass

from stepstream.learner.data.attempt import Attempt

REASONS = {
    "split": "it is not of the split `train`: evaluations are never trained on",
    "other_model": "its tokens were sampled by another model than the learner's",
    "no_group": "it has no group_id, so `learner.advantage`, or `dpo`, has nothing to compare it with",
    "consent": "the consent that holds for it does not allow training",
    "fidelity": "too little of it was captured: `learner.objective` policy_gradient needs token ids and behaviour "
    "log-probabilities (fidelity `token`), dpo, kto and sft its whole text (`text`)",
    "not_trainable": "its label marks it as not trainable: its flags name the reason",
    "no_outcome": "its outcome, or a component that its reward requires, had not come when its group ended",
    "shaping_discount": "its reward is shaped by potentials for another discount than the learner adds it up with, and "
    "would move the optimum",
    "invalid": "its label contradicts itself or the model: the learner's dead letter names the place",
    "no_trained_tokens": "none of its tokens may be trained on",
    "greedy_sampling": "its tokens were sampled greedily (temperature 0): ratios of probabilities say nothing there",
    "truncated_sampling": "top-p, top-k or min-p cut the distribution that its tokens were sampled from, and no "
    "sampling mask tells which tokens were left",
    "penalised_sampling": "penalties changed the distribution that its tokens were sampled from",
    "biased_sampling": "a bias changed the distribution that its tokens were sampled from, or excluded tokens",
    "grammar_sampling": "a grammar restricted its tokens (structured output, or a tool_choice that forces a call), and "
    "no sampling mask tells which tokens were left",
    "sampling_mask": "its sampling mask is of another response: it lacks a token that was sampled",
    "restricted_sampling": "its tokens were sampled under a restriction that this version of the learner does not know",
    "conversation_form": "the model's chat template and tokenizer cannot render its text",
    "too_long": "it, or its demonstration, is longer than the model's context",
    "other_lineage": "it was sampled before the lineage's root was published",
    "excluded_reward_spec": "its label is of a reward specification that was excluded from training, since its reward "
    "may be gamed",
    "stale": "its oldest token was sampled more versions ago than `learner.staleness_bound`",
    "no_variance": "every advantage in its group is 0: no attempt, and no step if `learner.advantage` compares steps, "
    "is better or worse than expected",
    "group_too_small": "fewer than two attempts of its group may be trained on",
    "no_success": "no attempt of its group succeeded or has a demonstration: there is nothing to imitate",
    "no_prompt": "its demonstration belongs to a prompt whose token ids are unknown",
    "demonstration_form": "the model's chat template cannot render its demonstration",
    "group_incomplete": "its group waited `learner.group_wait_s` and other attempts were still missing",
    "group_over": "it came after its group had ended without being trained on",
    "superseded": "a newer revision of its label came before it was trained on",
    "trained_on_older_revision": "an older revision of its label was trained on, and nothing is trained on twice",
    "reuse_bound": "it came after its group had been trained on `learner.reuse` times",
    "near_duplicate_cap": "near-duplicates of its group took `learner.near_duplicate_cap` places in each update",
    "tenant_share": "its tenant's groups took the whole of `learner.tenant_share` in each update",
}
"""Every reason for dropping an attempt, as a clause that follows "because"."""

REMEDIES = {
    "split": "nothing: send attempts that may be learned from without `x-stepstream-split: eval`",
    "other_model": "a learner of the model that sampled it (`learner.model`); text without a known policy version "
    "trains any model, with `learner.objective` dpo, kto or sft",
    "no_group": "nothing for this one: send the attempts at one task with the same `x-stepstream-group`, or choose an "
    "advantage rule that needs no group; a `demonstration` on one of its steps is a pair for dpo",
    "consent": "`stepstream consent set`: its label then gets a new revision, which counts while it is not stale",
    "fidelity": "`learner.objective` dpo, kto or sft, which train on text; or serve the agent through the gateway "
    "from a worker that returns token ids",
    "not_trainable": "see its flags; `stepstream quarantine release` releases quarantined steps",
    "no_outcome": "feedback with its outcome: its label then gets a new revision, which counts while it is not stale",
    "shaping_discount": "a reward specification with the `gamma` of the advantage rule: 1, or for rules that credit "
    "steps `learner.credit_discount` (docs/rewards.md, Shaping); its label then gets a new revision",
    "invalid": "a correction of its producer: see its dead letter (`stepstream doctor`, topic dead-letters)",
    "no_trained_tokens": "nothing for this one",
    "greedy_sampling": "a temperature above 0; or `learner.objective` dpo, kto or sft, without ratios",
    "truncated_sampling": "a larger `gateway.sampling_mask_ids`, so that workers return the mask; "
    "`gateway.train_sampling` force; or `learner.objective` dpo, kto or sft, without ratios",
    "penalised_sampling": "`gateway.train_sampling` force; or `learner.objective` dpo, kto or sft, without ratios",
    "biased_sampling": "calls without biases; or `learner.objective` dpo, kto or sft, without ratios",
    "grammar_sampling": "a larger `gateway.sampling_mask_ids`, so that workers return the mask; "
    "calls without a grammar; or `learner.objective` dpo, kto or sft, without ratios",
    "sampling_mask": "a correction of its producer; or `learner.objective` dpo, kto or sft, without ratios",
    "restricted_sampling": "a newer learner; or `learner.objective` dpo, kto or sft, without ratios",
    "conversation_form": "a model whose chat template has its roles and tool calls; or a new label, if its label "
    "predates labels with text",
    "too_long": "a model with a longer context",
    "other_lineage": "nothing: a new lineage learns from what its own versions sampled",
    "excluded_reward_spec": "another reward specification (`stepstream rewards put`) for what comes; after a false "
    "alarm, `stepstream decisions undo` of the pause that excluded it",
    "stale": "a larger `learner.staleness_bound`, or fewer attempts ahead of the learner (`fleet.max_ahead`)",
    "no_variance": "nothing for this one: tasks that are sometimes solved, a rule that compares steps, or one that "
    "needs no difference",
    "group_too_small": "more attempts in its group that may be trained on",
    "no_success": "feedback with a `demonstration` on one of its steps, while it is not stale; or easier tasks",
    "no_prompt": "a demonstration on a step whose response was captured with its token ids",
    "demonstration_form": "a demonstration that is text, or one assistant's message in OpenAI's form as JSON",
    "group_incomplete": "a longer `learner.group_wait_s`; check why the other attempts of its group did not end",
    "group_over": "a longer `learner.group_wait_s`, if its group ended as incomplete",
    "superseded": "nothing: the newer revision takes its place",
    "trained_on_older_revision": "nothing in this lineage: the next one learns from the newest revision",
    "reuse_bound": "a larger `learner.reuse`",
    "near_duplicate_cap": "a larger `learner.near_duplicate_cap`, or more different tasks",
    "tenant_share": "a larger `learner.tenant_share`, or more attempts of other tenants",
}
"""The remedy for each of `REASONS`."""


@dataclass(frozen=True, slots=True)
class Drop:
    """An attempt that the buffer dropped without training on it."""

    attempt: Attempt
    reason: str
    """One of `REASONS`."""
    trained_revision: int | None = None
    """Older revision of it that the lineage trained on; None: none."""
