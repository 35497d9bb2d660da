"""Tokens are scored by the distribution that sampled them: from the agent's steps through `label` to the update."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from label_runs import FEEDBACK, STEPS, Run, governed
from labelled_records import LIMITS, tiny_model
from reference_sampling import response_logprobs
from stream_records import make_ending, make_steps

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt, attempt_of
from stepstream.learner.data.requirements import REQUIREMENTS
from stepstream.learner.data.sequences import Limits
from stepstream.learner.training.trainer import Trainer
from stepstream.learner.training.update_stats import gap_warning
from stepstream.services.inference.continuous_batch import Batch, Generation
from stepstream.services.inference.engine import SamplingParams, TokenChunk
from stepstream.services.inference.llama import LlamaWeights
from stepstream.topics.events import Sampling, new_policy_span, new_sampling

VERSION = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # An untrained model's logits are near 0, and temperature would change nothing.
    loaded.get_output_embeddings().weight.data.mul_(4.0)
    loaded.save_pretrained(folder)
    return loaded.eval()


@torch.no_grad()
def sampled_steps(model: Any, name: str, samplings: list[Sampling], version: int = VERSION) -> list[Any]:
    """Return steps whose log-probabilities are those of an engine that divides its logits by the temperature."""
    steps: list[Any] = make_steps(name, len(samplings), version=version)
    context: list[int] = []
    for step, sampling in zip(steps, samplings, strict=True):
        step["prompt_token_ids"] = [token % 95 + 4 for token in step["prompt_token_ids"]]
        step["response_token_ids"] = [token % 95 + 4 for token in step["response_token_ids"]]
        step["prompt_shared_tokens"], step["prompt_shared_digest"] = 0, None
        whole = [*context, *step["prompt_token_ids"]]
        step["prompt_token_ids"], context = whole, [*whole, *step["response_token_ids"]]
        logits = model(torch.tensor([context])).logits[0, len(whole) - 1 : -1] / (sampling["temperature"] or 1.0)
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(step["response_token_ids"])[:, None])
        step |= {"sampling": sampling, "response_logprobs": chosen[:, 0].tolist()}
    return steps


def engine_steps(model: Any, folder: Path, name: str, **fields: Any) -> list[Any]:
    """Return steps that the torch engine samples with masks, at temperature 0.7 and with the truncation of `fields`."""
    batch = Batch(LlamaWeights(folder, "cpu"), VERSION, 1, 128)
    params = SamplingParams(4, 0.7, seed=len(name), mask_ids=64, **fields)
    steps: list[Any] = make_steps(name, 2)
    context: list[int] = []
    for step in steps:
        whole = [*context, *(token % 95 + 4 for token in step["prompt_token_ids"])]
        chunks: list[TokenChunk] = []
        with torch.inference_mode():
            batch.join([Generation(whole, params, chunks.append)])
            while batch.running:
                batch.step()
            tokens, logprobs = list(chunks[-1].token_ids), list(chunks[-1].logprobs)
            logits = model(torch.tensor([[*whole, *tokens]])).logits[0, len(whole) - 1 : -1]
        assert response_logprobs(logits, whole, tokens, params) == pytest.approx(logprobs, abs=1e-4)
        assert chunks[-1].mask is not None
        step |= {"response_token_ids": tokens, "response_logprobs": logprobs, "prompt_token_ids": whole}
        step |= {"prompt_shared_tokens": 0, "prompt_shared_digest": None, "sampling_mask": chunks[-1].mask._asdict()}
        step["sampling"] = new_sampling(temperature=0.7, **fields)
        step["policy_spans"] = [new_policy_span(start=0, end=len(tokens), model="demo", version=VERSION)]
        context = [*whole, *tokens]
    return steps


def labelled_attempt(steps: list[Any], reward: float, limits: Limits = LIMITS) -> Attempt:
    """Return the attempt that `label` and the learner make of the steps."""
    name = steps[0]["trajectory_id"]
    ending = governed(make_ending(name, len(steps), reward))
    events = [(STEPS, governed(step | {"group_id": "g"})) for step in steps]
    (label,) = Run().labels(*events, (FEEDBACK, ending))
    return attempt_of(label, (0, 0), limits)


def updated(folder: Path, attempts: list[Attempt], version: int = VERSION, **fields: Any) -> dict[str, float]:
    config = LearnerSettings.model_validate({"preset": "tiny", "warmup_updates": 0, **fields})
    return Trainer(folder, config, root=folder).update(1, [attempts], version)


@pytest.mark.parametrize("fields", [{}, {"microbatch_tokens": 1}, {"kl_weight": 0.1, "minibatches": 1}])
def test_ratios_are_1_at_the_sampling_temperature(folder: Path, model: Any, fields: dict[str, Any]) -> None:
    samplings = [[new_sampling(temperature=t) for t in each] for each in ([0.7, 0.7], [0.7, 1.3], [1.0, 0.7])]
    attempts = [labelled_attempt(sampled_steps(model, f"t{n}", each), float(n)) for n, each in enumerate(samplings)]
    figures = updated(folder, attempts, **fields)
    assert figures["mu_gap_max"] < 1e-4
    assert figures["mismatch_kl"] == pytest.approx(0.0, abs=1e-8)
    assert figures["mu_gap_tokens"] == figures["tokens"]
    assert figures["effective_share"] == pytest.approx(1.0, abs=1e-4)
    assert figures["reference_kl"] == pytest.approx(0.0, abs=1e-6)


def test_an_unknown_temperature_shows_in_the_gap(folder: Path, model: Any) -> None:
    steps = [sampled_steps(model, f"t{n}", [new_sampling(temperature=0.7)]) for n in range(2)]
    for own in steps:
        own[0]["sampling"] = new_sampling()  # an engine's default that nobody recorded
    figures = updated(folder, [labelled_attempt(own, float(n)) for n, own in enumerate(steps)])
    assert figures["mu_gap_max"] > 0.1
    assert gap_warning(figures, VERSION, figures["mu_gap_max"]) == ""
    assert "learner.max_mu_gap is 0.1: check" in gap_warning(figures, VERSION, 0.1)
    assert gap_warning({}, VERSION, 0.1) == ""
    assert figures["mismatch_kl"] > 0.01


def test_the_gap_covers_tokens_of_the_present_version_once_per_version(folder: Path, model: Any) -> None:
    attempts = [
        labelled_attempt(sampled_steps(model, f"t{n}", [new_sampling()], version=VERSION - n), float(n))
        for n in range(2)
    ]
    trainer = Trainer(folder, LearnerSettings.model_validate({"preset": "tiny", "warmup_updates": 0}))
    first = trainer.update(1, [attempts], VERSION)
    assert first["mu_gap_tokens"] == attempts[0].sequences[0].trained.size < first["tokens"]
    assert "mu_gap_max" not in trainer.update(2, [attempts], VERSION)  # its weights were never served
    assert "mu_gap_max" not in trainer.update(3, [attempts], VERSION + 1)


@pytest.mark.parametrize("objective", ["dpo", "kto", "sft"])
def test_preferences_score_at_temperature_1_and_take_restricted_tokens(
    folder: Path, model: Any, objective: str
) -> None:
    from dataclasses import replace

    limits = replace(LIMITS, requirements=REQUIREMENTS[objective])
    samplings = [new_sampling(temperature=0.0), new_sampling(temperature=0.7, top_p=0.5)]
    attempts = [labelled_attempt(sampled_steps(model, f"t{n}", samplings), float(n), limits) for n in range(2)]
    assert [each.sequences[0].temperatures for each in attempts] == [None, None]
    assert [each.restricted_tokens for each in attempts] == [0, 0]
    figures = updated(folder, attempts, objective=objective)
    assert figures["tokens"] >= attempts[0].sequences[0].trained.size
    assert "mu_gap_max" not in figures


def test_restricted_steps_are_context_and_the_others_are_trained(folder: Path, model: Any) -> None:
    samplings = [new_sampling(temperature=0.7), new_sampling(temperature=0.7, top_k=5), new_sampling(temperature=0.5)]
    steps = [sampled_steps(model, f"t{n}", samplings) for n in range(2)]
    attempts = [labelled_attempt(own, float(n)) for n, own in enumerate(steps)]
    (tokens,) = attempts[0].sequences
    assert sorted(set(tokens.steps.tolist())) == [0, 2]
    assert tokens.temperatures is not None
    assert np.unique(tokens.temperatures).tolist() == [np.float32(0.5), np.float32(0.7)]
    figures = updated(folder, attempts)
    assert (figures["restricted_tokens"], figures["tokens"]) == (8.0, 16.0)
    assert figures["mu_gap_max"] < 1e-4


@pytest.mark.parametrize(
    "fields", [{"top_p": 0.6}, {"top_k": 5}, {"min_p": 0.1}, {"top_p": 0.8, "top_k": 20, "min_p": 0.02}], ids=str
)
def test_masked_tokens_are_scored_by_the_truncated_distribution(
    folder: Path, model: Any, fields: dict[str, Any]
) -> None:
    steps = [engine_steps(model, folder, "t" * (number + 1), **fields) for number in range(2)]
    sampled = sum(len(step["response_token_ids"]) for own in steps for step in own)
    figures = updated(
        folder, [labelled_attempt(own, float(n)) for n, own in enumerate(steps)], kl_weight=0.1, minibatches=1
    )
    assert figures["mu_gap_max"] < 1e-4
    assert (figures["mu_gap_tokens"], figures["tokens"], figures["restricted_tokens"]) == (sampled, sampled, 0)
    assert figures["effective_share"] == pytest.approx(1.0, abs=1e-4)
    assert figures["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    for step in steps[0]:
        step["sampling_mask"] = None
    assert labelled_attempt(steps[0], 1.0).untrainable == "truncated_sampling"


@pytest.mark.parametrize("advantage", ["ppo_gae", "reinforce_pp", "step_ppo", "gigpo"])
def test_rules_count_only_the_tokens_that_are_trained(folder: Path, model: Any, advantage: str) -> None:
    samplings = [new_sampling(), new_sampling(top_k=5)]
    attempts = [labelled_attempt(sampled_steps(model, f"t{n}", samplings), float(n)) for n in range(2)]
    assert [[step.tokens for step in each.credit.steps] for each in attempts] == [[4, 0], [4, 0]]
    assert updated(folder, attempts, advantage=advantage)["tokens"] == 8.0


@pytest.mark.parametrize(
    ("samplings", "reason"),
    [
        ([{"temperature": 0.0}], "greedy_sampling"),
        ([{"top_p": 0.9}], "truncated_sampling"),
        ([{"repetition_penalty": 1.1}], "penalised_sampling"),
        ([{"logit_bias": True}], "biased_sampling"),
        ([{"constraint": "tool_choice"}], "grammar_sampling"),
        ([{"constraint": "json_schema"}, {"temperature": 0.0}], "greedy_sampling"),
    ],
)
def test_a_wholly_restricted_attempt_is_dropped_with_its_reason(
    model: Any, samplings: list[dict[str, Any]], reason: str
) -> None:
    found = labelled_attempt(sampled_steps(model, "t", [new_sampling(**each) for each in samplings]), 1.0)
    assert (found.untrainable, found.sequences, found.restricted_tokens) == (reason, (), 0)
