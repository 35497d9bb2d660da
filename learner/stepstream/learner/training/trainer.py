"""Run updates: train on a few groups of attempts with a few gradient steps on the policy, and return figures.

    rows (training/rows.py) → forward passes (model/packing.py) → log-probabilities (model/forward.py)
    → objective (losses/) → step (model/policy.py)

On CPU the same weights, optimizer state, update number, groups and settings give the same bits again. `stepstream
rebuild` depends on it.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepstream.config import LearnerSettings
from stepstream.learner.advantages.from_config import rule_of
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.chat_template import ChatTemplate
from stepstream.learner.data.requirements import requirements_of
from stepstream.learner.data.sequences import Limits, TokenSequence
from stepstream.learner.losses import Bucket
from stepstream.learner.losses.from_config import objective_of
from stepstream.learner.model.critic import Critic, CriticGradient
from stepstream.learner.model.distributed import current_ranks
from stepstream.learner.model.forward import Scores
from stepstream.learner.model.policy import Policy
from stepstream.learner.model.reference import reference_of
from stepstream.learner.model.snapshot import Snapshot
from stepstream.learner.training.hindsight import hindsight_rows, with_hindsight
from stepstream.learner.training.preference import Likelihood, Preference, rows_without_weight, with_weight
from stepstream.learner.training.rows import Row, critic_targets, rows_of, tokens_of
from stepstream.learner.training.rule_inputs import RuleInputs, probes_of, rule_inputs_of, with_kl_penalty
from stepstream.learner.training.two_pass_loss import FirstPass, Minibatch, UpdateStats, needs_first_pass, row_scales
from stepstream.learner.training.update_stats import (
    critic_figures,
    data_figures,
    demonstrated_share,
    gap_figures,
    lag_figures,
    step_figures,
)
from stepstream.versions.layout import weights_folder

Rows = Sequence[TokenSequence] | Mapping[int, TokenSequence]
"""Training sequences by number."""
Score = Callable[[Sequence[TokenSequence]], Tensor]
"""Computes one or more numbers for every trained token, row after row. Shape [trained tokens, …]."""


class Trainer:
    """The policy in training with its objective, advantage rule and critic."""

    def __init__(self, folder: Path, config: LearnerSettings, root: Path | None = None) -> None:
        """Continue from a folder in Hugging Face form, with its optimizer state and adapters if it has them.

        Args:
            folder: folder of the version to train from.
            config: settings.
            root: folder of the lineage's root; needed if the settings require a reference policy.

        Raises:
            CannotTrain: the learner cannot train a model of this kind.
        """
        self._config, self._rule = config, rule_of(config)
        self._preference = None if config.objective == "policy_gradient" else Preference(config)
        self._objective = Likelihood() if self._preference else objective_of(config)
        self._aggregation = "sum" if self._preference else self._rule.aggregation
        self.policy = Policy(folder, config)
        self._requirements = requirements_of(config)
        self._chat_template = None if self._requirements.sampled else ChatTemplate(weights_folder(folder))
        self._reference = reference_of(self.policy, root, config)
        self._loss_reference = self._reference if config.kl_place == "loss" and not self._preference else None
        self._critic: Critic | None = None
        if "values" in self._rule.needs and not self._preference:
            self._critic = Critic(self.policy.state_size, config, folder)
        self._updated_version: int | None = None
        self.lags: list[Bucket] = []
        """Figures of the last update by staleness."""
        self._ranks = current_ranks(config.sequence_parallel)

    @property
    def model(self) -> Any:
        """The Hugging Face model."""
        return self.policy.model

    def limits(self, name: str) -> Limits:
        """Return the limits for records of model `name`; with tokenizers if the objective trains on text."""
        limits, template = self.policy.limits(name), self._chat_template
        if template is None:
            return limits
        return replace(limits, response_tokens=template, conversation_sequences=template.conversation_sequences)

    def update(self, number: int, groups: Sequence[Sequence[Attempt]], version: int) -> dict[str, float]:
        """Train on the groups, each of which must yield a gradient under the learner's objective and rule.

        Args:
            number: number of this update since the root of the lineage, from 1: sets the rate and the minibatches.
            groups: attempts by group; their order matters for the last bits.
            version: version that the learner trains from: for the staleness in the figures, and for an interpolated
                proximal policy.

        Returns:
            Figures by name: `loss`, `clip_share`, `cap_share`, `effective_share`, `kl`, `entropy` (mean of the tokens'
            exact entropies, in nats), `reference_kl` (estimate of KL(θ‖ref) in nats per token; 0 if `kl_weight` is 0),
            `staleness_mean`, `staleness_max`, `reward`, `tokens`, `sequences`, `grad_norm`, `learning_rate`,
            `steps_skipped`, `credited_share` (share of the trained tokens whose advantage is not 0), `rejected_share`
            (share that a weight or mask rejected), `staleness_share_N` and `staleness_share_more` (share with a
            staleness of at most N versions but above the previous N, and above the largest N), `restricted_tokens`
            (sampled tokens of its attempts that are context only, since their sampling was restricted). Of tokens that
            the present version sampled, if there are any: `mu_gap_mean`, `mu_gap_max` (absolute difference of log p
            and log μ, in nats), `mismatch_kl` (estimate of KL(μ‖p), in nats), `mu_gap_tokens`. With a critic:
            `value_loss` (mean over its targets, in reward squared, halved) and `explained_variance` (share of the
            targets' variance that its values explain). With preferences: `preferred_share` (share of the pairs or
            answers that the policy orders correctly) and for pairs `preferred_margin` (mean gain of the better over
            the worse, in nats). With imitation: `demonstrated_share` (share of the imitated tokens that the policy did
            not sample).
        """
        rate = learning_rate(self._config, number)
        if self._preference is not None:
            return self._preference_update(self._preference, number, groups, version, rate)
        inputs = self._rule_inputs(groups)
        rows = rows_of(groups, self._rule, inputs)
        parts = self._minibatches(groups, number)
        # In the first gradient step θ is the proximal policy: only later minibatches need its scores beforehand.
        beforehand = parts[1:] if self._objective.proximal == "forward" else []
        later = [index for part in beforehand for index in part]
        if inputs.logprobs:
            proximal = {index: inputs.logprobs[index] for index in later}
        else:
            proximal = self._score_rows(tokens_of(rows), later, self.policy.logprobs)
        # A second update from the same version begins with weights that no worker serves.
        is_version, self._updated_version = version != self._updated_version, version
        steps: list[UpdateStats] = []
        for part in parts:
            knows_proximal = not steps or part[0] in proximal
            steps.append(self._step(rows, part, proximal, version, rate, is_version and knows_proximal))
        self.lags = lag_figures(steps)
        figures = step_figures(steps) | data_figures(rows, groups, version) | critic_figures(rows, steps)
        figures |= gap_figures(steps)
        figures["reference_kl"] += inputs.distance
        return figures | {"learning_rate": rate}

    def snapshot(self) -> Snapshot:
        """Copy its state for a checkpoint; every rank must call this."""
        return replace(self.policy.snapshot(), critic=self._critic.state() if self._critic else {})

    def _rule_inputs(self, groups: Sequence[Sequence[Attempt]]) -> RuleInputs:
        """Compute the inputs of the rule with the current policy."""
        attempts = [attempt for group in groups for attempt in group]
        inputs = RuleInputs([[attempt.credit for attempt in group] for group in groups])
        if self._rule.needs & {"values", "log_ratios"}:
            probes = probes_of(attempts)
            inputs = rule_inputs_of(groups, self._score_rows(probes, range(len(probes)), self._logprobs_and_values))
        if "hindsight" in self._rule.needs:
            longest = self.policy.model.config.max_position_embeddings
            rows_by_attempt = [hindsight_rows(attempt, longest) for attempt in attempts]
            rows = [row for own in rows_by_attempt for row in own]
            logprobs = self._score_rows(rows, range(len(rows)), self.policy.logprobs)
            inputs = replace(inputs, groups=with_hindsight(inputs.groups, rows_by_attempt, logprobs))
        if self._reference and not self._loss_reference:
            inputs = self._add_kl_penalty(inputs, groups)
        return inputs

    def _add_kl_penalty(self, inputs: RuleInputs, groups: Sequence[Sequence[Attempt]]) -> RuleInputs:
        """Subtract the KL penalty from the reward of every token."""
        assert self._reference is not None
        rows = [tokens for group in groups for attempt in group for tokens in attempt.sequences]
        logprobs = inputs.logprobs or self._score_rows(rows, range(len(rows)), self.policy.logprobs)
        reference = self._score_rows(rows, range(len(rows)), self._reference)
        return with_kl_penalty(inputs, groups, logprobs, reference, self._config.kl_weight)

    def _logprobs_and_values(self, rows: Sequence[TokenSequence]) -> Tensor:
        """Return the log-probability of every trained token and, with a critic, V before it. Shape [tokens, 1 or 2]."""
        scores = self.policy.scores(rows, states=self._critic is not None)
        columns = [scores.logprobs]
        if self._critic and scores.states is not None:
            columns.append(self._critic.values(scores.states))
        return torch.stack(columns, 1)

    def _minibatches(self, groups: Sequence[Sequence[Attempt]], number: int) -> list[list[int]]:
        """Return the indices of the rows of each gradient step, drawn by group since attempts of a group begin alike.

        The rows of an attempt stay together.
        """
        rows = count()
        owners, owned = [], []
        for owner, group in enumerate(groups):
            for attempt in group:
                if attempt.sequences:
                    owners.append(owner)
                    owned.append([next(rows) for _ in attempt.sequences])
        draw = random.Random(self._config.seed * 1_000_003 + number)
        turns, order = list(range(len(groups))), list(range(len(owners)))
        draw.shuffle(turns)
        draw.shuffle(order)
        order.sort(key=lambda place: turns[owners[place]])
        parts = min(self._config.minibatches, len(order))
        ends = [len(order) * part // parts for part in range(parts + 1)]
        return [[row for place in order[start:end] for row in owned[place]] for start, end in pairwise(ends)]

    def _preference_update(
        self, preference: Preference, number: int, groups: Sequence[Sequence[Attempt]], version: int, rate: float
    ) -> dict[str, float]:
        """Update by preferences in place of advantages."""
        answers = preference.comparisons(groups)
        answer_numbers, row_numbers = count(), count()
        rows = [
            row for group in answers for answer in group for row in rows_without_weight(answer, next(answer_numbers))
        ]
        rows_by_group = [[[next(row_numbers) for _ in answer.sequences] for answer in group] for group in answers]
        reference = self._score_rows(tokens_of(rows), range(len(rows)), self._reference) if self._reference else {}
        steps, judgements = [], []
        for part in preference.minibatches(answers, number):
            owned = [own for index in part for own in rows_by_group[index]]
            chosen = [row for own in owned for row in own]
            current = self._score_rows(tokens_of(rows), chosen, self.policy.logprobs)
            weights, judgement = preference.weigh([answers[index] for index in part], owned, current, reference)
            for own, weight in zip(owned, weights, strict=True):
                for row in own:
                    rows[row] = with_weight(rows[row], weight)
            learned = [row for own, weight in zip(owned, weights, strict=True) if weight for row in own]
            if learned:
                step = self._step(rows, learned, {}, version, rate)
                step.loss = judgement["loss"]
                steps.append(step)
            judgements.append(judgement)
        self.lags = lag_figures(steps)
        figures = step_figures(steps) | data_figures(rows, groups, version)
        if self._requirements.demonstrations == "imitated":
            figures["demonstrated_share"] = demonstrated_share(rows)
        preferred = {
            name: sum(one[name] for one in judgements) / len(judgements) for name in judgements[0] if name != "loss"
        }
        return figures | preferred | {"learning_rate": rate}

    @torch.no_grad()
    def _score_rows(self, rows: Rows, part: Sequence[int], score: Score) -> dict[int, Tensor]:
        """Return the score of the trained tokens of each row of `part`, by index. Every rank computes a share."""
        batches = list(self._split(rows, part))
        own_results = [
            score([rows[index] for index in batches[number]]) for number, _ in self._ranks.rounds(len(batches))
        ]
        scores: dict[int, Tensor] = {}
        for indices, together in zip(batches, self._ranks.gather(own_results, len(batches)), strict=True):
            sizes = [rows[index].trained.size for index in indices]
            scores |= dict(zip(indices, together.split(sizes), strict=True))
        return scores

    def _step(
        self,
        rows: Sequence[Row],
        part: Sequence[int],
        proximal: dict[int, Tensor],
        version: int,
        rate: float,
        proximal_is_version: bool = False,
    ) -> UpdateStats:
        """Make one gradient step on the rows of `part`."""
        scales = row_scales(rows, part, self._aggregation, self._config.loss_length)
        own = {index: rows[index] for index in part}
        minibatch = Minibatch(self._objective, own, scales, version, proximal_is_version)
        batches = list(self._split(tokens_of(rows), part))
        first_pass = None
        if needs_first_pass(self._objective, rows, batches):
            first_pass = self._first_pass(minibatch, proximal)
        own_results: list[tuple[UpdateStats, CriticGradient | None]] = []
        rounds = list(self._ranks.rounds(len(batches)))
        for position, (number, present) in enumerate(rounds, start=1):
            indices = batches[number]
            chosen = [rows[index] for index in indices]
            tokens = tokens_of(chosen)
            scores = self.policy.scores(tokens, states=self._critic is not None)
            if first_pass:
                loss, stats = first_pass.surrogate_loss(indices, scores.logprobs), UpdateStats()
            else:
                before = torch.cat([proximal[i] for i in indices]) if indices[0] in proximal else None
                reference = self._loss_reference(tokens) if self._loss_reference else None
                loss, stats = minibatch.loss_and_stats(indices, scores, before, reference)
            loss = loss if self._ranks.group < present else 0.0 * loss
            self.policy.learn(loss, present, is_last=position == len(rounds))
            critic_gradient = None
            if self._critic and scores.states is not None:
                critic_gradient = self._critic.gradient_of(scores.states, *critic_targets(chosen))
            own_results.append((stats, critic_gradient))
        gathered = self._ranks.gather(own_results, len(batches))
        step = first_pass.stats if first_pass else UpdateStats.of_all([each for each, _ in gathered])
        step.grad_norm = self.policy.step(rate)
        step.skipped = int(not math.isfinite(step.grad_norm))
        if self._critic:
            step.value_loss = self._critic.learn([gradient for _, gradient in gathered if gradient])
        return step

    def _first_pass(self, minibatch: Minibatch, proximal: Mapping[int, Tensor]) -> FirstPass:
        """Run the first pass over the rows of the minibatch."""
        part = list(minibatch.rows)
        tokens = dict(zip(part, tokens_of(list(minibatch.rows.values())), strict=True))

        def scored(score: Score) -> Tensor:
            by_row = self._score_rows(tokens, part, score)
            return torch.cat([by_row[index] for index in part])

        logprobs, entropy = scored(lambda own: torch.stack(self.policy.scores(own)[:2], 1)).unbind(1)
        before = torch.cat([proximal[index] for index in part]) if part[0] in proximal else None
        reference = scored(self._loss_reference) if self._loss_reference else None
        return minibatch.first_pass(Scores(logprobs, entropy), before, reference)

    def _split(self, rows: Rows, part: Sequence[int]) -> Iterator[list[int]]:
        """Yield the indices of the rows of `part` that share a forward pass."""
        for batch in self.policy.batches([rows[index] for index in part], self._config.microbatch_tokens):
            yield [part[index] for index in batch]


def learning_rate(config: LearnerSettings, number: int) -> float:
    """Return the rate of update `number` (from 1): a linear rise over the warm-up, then a linear or cosine fall."""
    if number < config.warmup_updates:
        return config.learning_rate * number / config.warmup_updates
    if not config.decay_updates:
        return config.learning_rate
    done = min(1.0, (number - config.warmup_updates) / config.decay_updates)
    fallen = done if config.decay_shape == "linear" else (1 - math.cos(math.pi * done)) / 2
    return config.learning_rate * (1 - (1 - config.final_rate) * fallen)
