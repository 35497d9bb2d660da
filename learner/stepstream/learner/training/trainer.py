"""One update: a few groups of attempts in, a few gradient steps on the policy, figures out.

    rows (rows.py) → forward passes (packs.py) → log-probabilities (forward.py) → objective (losses/) → step (policy.py)

On CPU the same weights, optimizer state, update number, groups and settings give the same bits again: that is what
`stepstream rebuild` stands on.
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
from stepstream.learner.model.checkpoint import Snapshot
from stepstream.learner.model.critic import Critic, Surprise
from stepstream.learner.model.distributed import current_ranks
from stepstream.learner.model.forward import Scores
from stepstream.learner.model.policy import Policy
from stepstream.learner.model.reference import reference_of
from stepstream.learner.training.hindsight import hindsight_rows, with_hindsight
from stepstream.learner.training.preference import Likelihood, Preference, unweighed_rows, weighed
from stepstream.learner.training.rows import Row, critic_targets, rows_of, tokens_of
from stepstream.learner.training.rule_inputs import RuleInputs, penalised, probes_of, rule_inputs_of
from stepstream.learner.training.two_pass_loss import FirstPass, Minibatch, UpdateStats, looks_beyond, row_scales
from stepstream.learner.training.update_stats import (
    critic_figures,
    data_figures,
    demonstrated_share,
    lag_figures,
    step_figures,
)

Rows = Sequence[TokenSequence] | Mapping[int, TokenSequence]
"""Training sequences by number."""
Score = Callable[[Sequence[TokenSequence]], Tensor]
"""Says something of every trained token, row after row. Shape [trained tokens, …]."""

_FINAL_RATE = 0.1
"""Share of the learning rate that is left when it has decayed."""


class Trainer:
    """The policy in training and how it learns."""

    def __init__(self, folder: Path, config: LearnerSettings, root: Path | None = None) -> None:
        """Continues from a folder in Hugging Face form: with its optimizer state and adapters, where it has them.

        Args:
            folder: of the version to train from.
            how: settings.
            root: folder of the lineage's root, where the settings need a reference policy.

        Raises:
            CannotTrain: the learner does not know how to train such a model.
        """
        self._config, self._rule = config, rule_of(config)
        self._preference = None if config.objective == "policy_gradient" else Preference(config)
        self._objective = Likelihood() if self._preference else objective_of(config)
        self._aggregation = "sum" if self._preference else self._rule.aggregation
        self.policy = Policy(folder, config)
        self._needs = requirements_of(config)
        self._speech = None if self._needs.sampled else ChatTemplate(folder)
        self._reference = reference_of(self.policy, root, config)
        self._anchor = self._reference if config.kl_place == "loss" and not self._preference else None
        self._critic: Critic | None = None
        if "values" in self._rule.needs and not self._preference:
            self._critic = Critic(self.policy.state_size, config, folder)
        self.lags: list[Bucket] = []
        """Figures of the last update by staleness."""
        self._ranks = current_ranks()

    @property
    def model(self) -> Any:
        """The Hugging Face model."""
        return self.policy.model

    def limits(self, name: str) -> Limits:
        """What records must keep to, for the model called `name`; where text will do, also how it becomes tokens."""
        limits = self.policy.limits(name)
        return replace(limits, speech=self._speech, transcript=self._speech.transcript) if self._speech else limits

    def update(self, number: int, groups: Sequence[Sequence[Attempt]], version: int) -> dict[str, float]:
        """Trains on the groups, of which each teaches something under the learner's objective and rule.

        Args:
            number: of this update since the root of the lineage, from 1: sets the rate and the minibatches.
            groups: attempts by group; their order matters for the last bits.
            version: version that the learner is training from: for the staleness in the figures, and the proximal
                policy where it is interpolated.

        Returns:
            Figures by name: `loss`, `clip_share`, `cap_share`, `effective_share`, `kl`, `entropy` (mean of the tokens'
            exact entropies, in nats), `reference_kl` (estimate of KL(θ‖ref) in nats a token; 0 where `kl_weight` is),
            `staleness_mean`, `staleness_max`, `reward`, `tokens`, `sequences`, `grad_norm`, `learning_rate`,
            `steps_skipped`, `credited_share` (of the trained tokens, those whose advantage is not 0),
            `rejected_share` (those that a weight or mask left out), `staleness_share_N` and `staleness_share_more`
            (those of a staleness of at most N versions, and more than the N before). With a critic also `value_loss`
            (mean over its targets, in reward squared, halved) and `explained_variance` (the share of its targets'
            variance that it had foreseen); where preferences are learned from, `preferred_share` (of the pairs or
            answers, those that the policy has in order) and with pairs `preferred_margin` (mean over them of how much
            likelier the better became than the worse, in nats); where responses are imitated, `demonstrated_share` (of
            the imitated tokens, those that the policy did not sample).
        """
        rate = learning_rate(self._config, number)
        if self._preference is not None:
            return self._prefer(self._preference, number, groups, version, rate)
        evidence = self._evidence(groups)
        rows = rows_of(groups, self._rule, evidence)
        parts = self._minibatches(groups, number)
        # The first gradient step starts from the proximal policy itself: only later minibatches need it beforehand.
        beforehand = parts[1:] if self._objective.proximal == "forward" else []
        later = [index for part in beforehand for index in part]
        if evidence.logprobs:
            proximal = {index: evidence.logprobs[index] for index in later}
        else:
            proximal = self._measured(tokens_of(rows), later, self.policy.logprobs)
        steps = [self._step(rows, part, proximal, version, rate) for part in parts]
        self.lags = lag_figures(steps)
        figures = step_figures(steps) | data_figures(rows, groups, version) | critic_figures(rows, steps)
        figures["reference_kl"] += evidence.distance
        return figures | {"learning_rate": rate}

    def snapshot(self) -> Snapshot:
        """What it holds, to be written."""
        return replace(self.policy.snapshot(), critic=self._critic.state() if self._critic else {})

    def _evidence(self, groups: Sequence[Sequence[Attempt]]) -> RuleInputs:
        """What the rule needs to be told by the policy as it is now."""
        attempts = [attempt for group in groups for attempt in group]
        evidence = RuleInputs([[attempt.credit for attempt in group] for group in groups])
        if self._rule.needs & {"values", "log_ratios"}:
            probes = probes_of(attempts)
            evidence = rule_inputs_of(groups, self._measured(probes, range(len(probes)), self._judged))
        if "hindsight" in self._rule.needs:
            longest = self.policy.model.config.max_position_embeddings
            owned = [hindsight_rows(attempt, longest) for attempt in attempts]
            rows = [row for own in owned for row in own]
            found = self._measured(rows, range(len(rows)), self.policy.logprobs)
            evidence = replace(evidence, groups=with_hindsight(evidence.groups, owned, found))
        if self._reference and not self._anchor:
            evidence = self._penalised(evidence, groups)
        return evidence

    def _penalised(self, evidence: RuleInputs, groups: Sequence[Sequence[Attempt]]) -> RuleInputs:
        """Pays for nearness to the reference, token by token."""
        assert self._reference is not None
        rows = [tokens for group in groups for attempt in group for tokens in attempt.sequences]
        own = evidence.logprobs or self._measured(rows, range(len(rows)), self.policy.logprobs)
        far = self._measured(rows, range(len(rows)), self._reference)
        return penalised(evidence, groups, own, far, self._config.kl_weight)

    def _judged(self, rows: Sequence[TokenSequence]) -> Tensor:
        """Log-probability of every trained token and, with a critic, the value before it. Shape [tokens, 1 or 2]."""
        scores = self.policy.scores(rows, states=self._critic is not None)
        columns = [scores.logprobs]
        if self._critic and scores.states is not None:
            columns.append(self._critic.values(scores.states))
        return torch.stack(columns, 1)

    def _minibatches(self, groups: Sequence[Sequence[Attempt]], number: int) -> list[list[int]]:
        """Indices of the rows of each gradient step: drawn by group, since attempts of one group begin alike.

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

    def _prefer(
        self, preference: Preference, number: int, groups: Sequence[Sequence[Attempt]], version: int, rate: float
    ) -> dict[str, float]:
        """An update by preferences, in place of advantages."""
        answers = preference.compared(groups)
        numbers, places = count(), count()
        rows = [row for group in answers for answer in group for row in unweighed_rows(answer, next(numbers))]
        rows_by_group = [[[next(places) for _ in answer.sequences] for answer in group] for group in answers]
        reference = self._measured(tokens_of(rows), range(len(rows)), self._reference) if self._reference else {}
        steps, told = [], []
        for part in preference.parts(answers, number):
            owned = [own for index in part for own in rows_by_group[index]]
            asked = [row for own in owned for row in own]
            current = self._measured(tokens_of(rows), asked, self.policy.logprobs)
            weights, judgement = preference.judge([answers[index] for index in part], owned, current, reference)
            for own, weight in zip(owned, weights, strict=True):
                for row in own:
                    rows[row] = weighed(rows[row], weight)
            learned = [row for own, weight in zip(owned, weights, strict=True) if weight for row in own]
            if learned:
                step = self._step(rows, learned, {}, version, rate)
                step.loss = judgement["loss"]
                steps.append(step)
            told.append(judgement)
        self.lags = lag_figures(steps)
        figures = step_figures(steps) | data_figures(rows, groups, version)
        if self._needs.demonstrations == "imitated":
            figures["demonstrated_share"] = demonstrated_share(rows)
        preferred = {name: sum(one[name] for one in told) / len(told) for name in told[0] if name != "loss"}
        return figures | preferred | {"learning_rate": rate}

    @torch.no_grad()
    def _measured(self, rows: Rows, part: Sequence[int], score: Score) -> dict[int, Tensor]:
        """What is said of the trained tokens of each row of the part, by the policy as it is now or the reference."""
        batches = list(self._split(rows, part))
        mine = [score([rows[index] for index in batches[number]]) for number, _ in self._ranks.rounds(len(batches))]
        found: dict[int, Tensor] = {}
        for indices, together in zip(batches, self._ranks.gathered(mine, len(batches)), strict=True):
            sizes = [rows[index].trained.size for index in indices]
            found |= dict(zip(indices, together.split(sizes), strict=True))
        return found

    def _step(
        self, rows: Sequence[Row], part: Sequence[int], proximal: dict[int, Tensor], version: int, rate: float
    ) -> UpdateStats:
        """One gradient step on the rows of the part."""
        scales = row_scales(rows, part, self._aggregation, self._config.loss_length)
        minibatch = Minibatch(self._objective, {index: rows[index] for index in part}, scales, version)
        batches = list(self._split(tokens_of(rows), part))
        foreseen = None
        if looks_beyond(self._objective, rows, batches):
            foreseen = self._foreseen(minibatch, proximal)
        mine: list[tuple[UpdateStats, Surprise | None]] = []
        for number, present in self._ranks.rounds(len(batches)):
            indices = batches[number]
            chosen = [rows[index] for index in indices]
            tokens = tokens_of(chosen)
            scores = self.policy.scores(tokens, states=self._critic is not None)
            if foreseen:
                loss, told = foreseen.loss(indices, scores.logprobs), UpdateStats()
            else:
                before = torch.cat([proximal[i] for i in indices]) if indices[0] in proximal else None
                reference = self._anchor(tokens) if self._anchor else None
                loss, told = minibatch.judged(indices, scores, before, reference)
            self.policy.learn(loss if self._ranks.rank < present else 0.0 * loss, present)
            surprise = None
            if self._critic and scores.states is not None:
                surprise = self._critic.surprise(scores.states, *critic_targets(chosen))
            mine.append((told, surprise))
        gathered = self._ranks.gathered(mine, len(batches))
        step = foreseen.step if foreseen else UpdateStats.of_all([told for told, _ in gathered])
        step.grad_norm = self.policy.step(rate)
        step.skipped = int(not math.isfinite(step.grad_norm))
        if self._critic:
            step.value_loss = self._critic.learn([surprise for _, surprise in gathered if surprise])
        return step

    def _foreseen(self, minibatch: Minibatch, proximal: Mapping[int, Tensor]) -> FirstPass:
        """The gradient step on the rows of the minibatch, judged before it is made."""
        part = list(minibatch.rows)
        tokens = dict(zip(part, tokens_of(list(minibatch.rows.values())), strict=True))

        def found(score: Score) -> Tensor:
            by_row = self._measured(tokens, part, score)
            return torch.cat([by_row[index] for index in part])

        logprobs, entropy = found(lambda own: torch.stack(self.policy.scores(own)[:2], 1)).unbind(1)
        before = torch.cat([proximal[index] for index in part]) if part[0] in proximal else None
        reference = found(self._anchor) if self._anchor else None
        return minibatch.foreseen(Scores(logprobs, entropy), before, reference)

    def _split(self, rows: Rows, part: Sequence[int]) -> Iterator[list[int]]:
        """Rows of the part that share a forward pass."""
        for local in self.policy.batches([rows[index] for index in part], self._config.microbatch_tokens):
            yield [part[index] for index in local]


def learning_rate(config: LearnerSettings, number: int) -> float:
    """Rate of update `number` (from 1): rises linearly over the warm-up, then falls linearly to a tenth."""
    if number < config.warmup_updates:
        return config.learning_rate * number / config.warmup_updates
    if not config.decay_updates:
        return config.learning_rate
    done = min(1.0, (number - config.warmup_updates) / config.decay_updates)
    return config.learning_rate * (1 - (1 - _FINAL_RATE) * done)
