"""Build labelled trajectories and a tiny model to train on them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sample_records import trajectory

from stepstream.learner.data.attempt import Attempt, attempt_of
from stepstream.learner.data.sequences import Limits
from stepstream.topics import events

LIMITS = Limits("demo", 99, 512)


def tiny_model(folder: Path, seed: int = 0) -> Path:
    """Save an untrained tiny model in Hugging Face format to `folder`."""
    from stepstream.learner.tiny.model import MAX_LENGTH, build_model, build_tokenizer  # seconds to import

    tokenizer = build_tokenizer(MAX_LENGTH)
    build_model(tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def labelled(
    group: str,
    number: int,
    reward: float,
    *,
    model: str = "demo",
    versions: tuple[int, ...] = (0, 0),
    seed: int = 0,
    **fields: Any,
) -> events.LabeledTrajectory:
    """Return an attempt with random tokens; it has one span for each of `versions`."""
    rng = random.Random(f"{seed}/{group}/{number}")
    ids = [rng.randrange(4, 99) for _ in range(4)]
    spans, logprobs = [], []
    for index, version in enumerate(versions):
        length = rng.randrange(3, 8)
        start, end = len(ids), len(ids) + length
        spans.append(events.new_sequence_span(start=start, end=end, step_index=index, model=model, version=version))
        logprobs += [rng.uniform(-6.0, -3.5) for _ in range(length)]
        ids += [rng.randrange(4, 99) for _ in range(length + 2)]
    steps = [
        events.new_labeled_step(step_index=index, event_id=f"s{index}", reward=paid, return_to_go=reward)
        for index, paid in enumerate([0.0] * (len(versions) - 1) + [reward])
    ]
    sequence = events.new_training_sequence(token_ids=ids, spans=spans, logprobs=logprobs)
    values: dict[str, Any] = {
        "group_id": group,
        "reward": reward,
        "success": reward == 1.0,
        "model": model,
        "version_min": min(versions),
        "version_max": max(versions),
        "sequences": [sequence],
        "trainable": True,
        "steps": steps,
        "tools": [],
    }
    return trajectory(f"{group}/{number}", **(values | fields))


def with_demonstration(record: events.LabeledTrajectory, step: int, text: str) -> events.LabeledTrajectory:
    """Return the record with a demonstration in place of a step's response."""
    record["steps"][step]["demonstration"] = text
    record["steps"][step]["prompt_tokens"] = record["sequences"][0]["spans"][step]["start"]
    return record


def text_record(
    name: str, texts: Sequence[str], reward: float, *, group: str | None = None, **fields: Any
) -> events.LabeledTrajectory:
    """Return an attempt of fidelity `text`: `texts` are of user and agent in turn; each answer is a step."""
    turns = [events.new_message(role=("user", "assistant")[n % 2], content=text) for n, text in enumerate(texts)]
    spans = [events.new_conversation_span(message=n, step_index=n // 2) for n in range(1, len(texts), 2)]
    steps = [
        events.new_labeled_step(step_index=n, event_id=f"s{n}", reward=0.0, return_to_go=reward, trainable=True)
        for n in range(len(spans))
    ]
    steps[-1]["reward"] = reward
    values: dict[str, Any] = {
        "group_id": group,
        "reward": reward,
        "success": reward == 1.0,
        "model": "",
        "version_min": None,
        "version_max": None,
        "fidelity": "text",
        "conversations": [events.new_conversation(messages=turns, spans=spans)],
        "trainable": True,
        "steps": steps,
        "tools": [],
    }
    return trajectory(name, **(values | fields))


def group_of(group: str, size: int, **fields: Any) -> list[events.LabeledTrajectory]:
    """Return a group of which only the first attempt succeeded."""
    return [labelled(group, number, float(number == 0), **fields) for number in range(size)]


def attempt(record: events.LabeledTrajectory, partition: int = 0, offset: int = 0, limits: Limits = LIMITS) -> Attempt:
    """Return the record as the learner reads it from a log position."""
    return attempt_of(record, (partition, offset), limits)
