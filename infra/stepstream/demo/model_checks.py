"""Check a served model: greedy tokens of fixed prompts, the learner's score of sampled tokens; make a bad version."""

import json
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.topics.catalogue import LABELED_TRAJECTORIES
from stepstream.topics.consumer import EventConsumer

PROMPTS = ("Dim the hall to 40%.", "What is the capital of France?", "Count from one to ten.", "Name three colours.")
_TOKENS = 24
_ANSWER_S = 120.0


def greedy_tokens(worker_url: str, model: str) -> list[list[int]]:
    """Return the worker's greedy tokens for `PROMPTS`."""
    answers = []
    for prompt in PROMPTS:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": _TOKENS,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{worker_url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            answers.append(json.load(answer)["choices"][0]["token_ids"])
    return answers


def write_bad_version(good: Path, folder: Path, seed: int = 1) -> None:
    """Write a model like the one in folder `good`, with random weights, into `folder`."""
    import shutil

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    for file in good.iterdir():
        if file.suffix != ".safetensors" and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(good), dtype=torch.float32)
    model.save_pretrained(folder)


def max_mu_gap(
    settings: Settings, folder: Path, version: int, start: Mapping[tuple[str, int], int], sequences: int = 32
) -> tuple[float, int]:
    """Score tokens that a version sampled with the learner's code; compare with their recorded log-probabilities.

    Args:
        settings: address of the log, and the learner's settings.
        folder: folder of the version in Hugging Face form, complete.
        version: its number.
        start: offsets of the labelled topic to read from.
        sequences: number of sequences to score, of those whose tokens are all of this version.

    Returns:
        The largest difference in nats, and the number of tokens compared.
    """
    import numpy as np
    import torch

    from stepstream.learner.data.attempt import attempt_of
    from stepstream.learner.data.sequences import Invalid
    from stepstream.learner.model.policy import Policy

    policy = Policy(folder, settings.learner.model_copy(update={"lora_rank": 0}))
    limits = policy.limits(settings.learner.model)
    rows: list[Any] = []
    with closing(sealing_codec(settings)) as codec, EventConsumer(settings.kafka, codec) as consumer:
        consumer.follow([LABELED_TRAJECTORIES], dict(start))
        while not consumer.is_caught_up() and len(rows) < sequences:
            for event in consumer.poll(500, 1.0):
                if event.record is None or event.record["split"] != "train":
                    continue
                try:
                    attempt = attempt_of(event.record, (event.partition, event.offset), limits)
                except Invalid:
                    continue
                rows += [row for row in attempt.sequences if (row.versions == version).all()]
    gap, tokens = 0.0, 0
    with torch.no_grad():
        for batch in policy.batches(rows[:sequences], settings.learner.microbatch_tokens):
            chosen = [rows[index] for index in batch]
            sampled = np.concatenate([row.logprobs for row in chosen])
            gap = max(gap, float(np.abs(policy.logprobs(chosen).numpy() - sampled).max()))
            tokens += sampled.size
    return gap, tokens
