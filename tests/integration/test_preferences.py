"""Train a policy on imported preferences and conversations, with govern, label and learner as processes."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from labelled_records import tiny_model
from log_reading import read_to_end
from waiting import wait_until

from stepstream.cli.main import run
from stepstream.cli.models import rebuild
from stepstream.config import LearnerSettings, Settings, environment_of
from stepstream.crypto.key_ring import sealing_codec
from stepstream.embedded.stack import Stack
from stepstream.learner.data.attempt import attempt_of
from stepstream.learner.lineage import Versions, read_versions
from stepstream.learner.training.trainer import Trainer

PAIRS, AT_ONCE = 20, 4
UPDATES = PAIRS // AT_ONCE
BETTER, WORSE = "as you wish", "no"


def preferences(file: Path) -> Path:
    answer = [[{"role": "assistant", "content": text}] for text in (BETTER, WORSE)]
    lines = [
        {
            "input": {"messages": [{"role": "user", "content": f"{word}?"}]},
            "preferred_output": answer[0],
            "non_preferred_output": answer[1],
        }
        for word in map(chr, range(ord("a"), ord("a") + PAIRS))
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def chats(file: Path) -> Path:
    lines = [
        {"messages": [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]}
        for texts in (("sing", "la la"), ("sing", "la", "more", "la la"))
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def records(settings: Settings, topic: str) -> list[Any]:
    with closing(sealing_codec(settings)) as codec:
        return [event.record for event in read_to_end(settings, codec, topic)]


def versions(settings: Settings) -> Versions:
    codec = sealing_codec(settings)
    found = read_versions(settings.kafka, codec)
    codec.close()
    return found


def test_pairs_and_conversations_from_files_are_labelled_learned_and_rebuilt(
    stack_factory: Callable[..., Stack], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny_model(tmp_path / "base")
    config = {"groups_per_update": AT_ONCE, "updates_per_checkpoint": 1, "minibatches": 1, "warmup_updates": 0}
    learner = {"objective": "dpo", "group_size": 2, "learning_rate": 3e-3, "staleness_bound": 0, **config}
    processes = ["broker", "registry", "govern", "label", "learner"]
    stack = stack_factory(processes, stack={"base_model": str(base)}, learner=learner)
    settings, model = stack.settings, stack.settings.learner.model
    for name, value in environment_of(settings).items():
        monkeypatch.setenv(name, value)

    options = ["--format", "chat", "--consent", "train"]
    assert run(["import", str(chats(tmp_path / "chats.jsonl")), *options, "--outcome", "1"]) == 0
    assert run(["import", str(preferences(tmp_path / "preferences.jsonl")), *options]) == 0

    def newest() -> int:
        found = versions(settings).newest(model)
        return -1 if found is None else found["version"]

    wait_until(lambda: newest() >= UPDATES)
    figures = [versions(settings).get(model, version)["metrics"] for version in (1, UPDATES)]
    assert figures[1]["loss"] < figures[0]["loss"] - 0.1
    assert figures[1]["preferred_margin"] > figures[0]["preferred_margin"] + 1.0
    assert figures[1]["preferred_share"] == 1.0
    decided = records(settings, "training-decisions")
    # A trajectory may be labelled before its outcome arrives: that revision is superseded.
    reasons = {(record["trajectory_id"], record["reason"] or record["outcome"]) for record in decided}
    assert Counter(reason for _, reason in reasons if reason != "superseded") == {"trained": 2 * PAIRS, "no_group": 2}
    assert {record["staleness"] for record in decided} == {None}
    result = CliRunner().invoke(rebuild, [f"{model}@latest"], env=environment_of(settings))
    assert result.exit_code == 0, result.output

    # A lineage with --from-start also learns from the records before its root.
    assert run(["models", "publish", str(base), "--from-start"]) == 0
    wait_until(lambda: newest() >= 2 * UPDATES + 1)
    assert versions(settings).get(model, 2 * UPDATES + 1)["metrics"]["preferred_margin"] > 1.0

    found = sorted(records(settings, "labeled-trajectories"), key=lambda label: label["revision"])
    labels = {label["trajectory_id"]: label for label in found}.values()
    for objective, share in (("sft", (PAIRS + 2) / (2 * PAIRS + 2)), ("kto", None)):
        trainer = Trainer(
            base,
            LearnerSettings.model_validate({"preset": "tiny", "objective": objective, "learning_rate": 3e-3, **config}),
            base,
        )
        limits = trainer.limits(model)
        attempts = [[attempt_of(label, (0, place), limits)] for place, label in enumerate(labels)]
        assert not any(attempt.untrainable for [attempt] in attempts)
        stats = [trainer.update(number, attempts, 0) for number in (1, 2, 3)]
        assert stats[2]["loss"] < stats[0]["loss"]
        assert share is None or stats[0]["preferred_share"] == pytest.approx(share)
