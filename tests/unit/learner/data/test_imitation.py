"""Check imitation: a demonstration is trained behind its step's exact prompt, also when it comes late."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from buffers import SIZE, attempt_at, buffer, fold, positions_of
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import LIMITS, attempt, group_of, labelled, tiny_model, with_demonstration
from transformers import AutoModelForCausalLM

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt, LogPosition
from stepstream.learner.data.learning_signal import imitation_signal, learning_signal_of
from stepstream.learner.data.replay_buffer import ReplayBuffer
from stepstream.learner.data.requirements import REQUIREMENTS
from stepstream.learner.model.checkpoint import sha256_of, write_version
from stepstream.learner.training.trainer import Trainer

SPEECH = replace(
    LIMITS,
    requirements=REQUIREMENTS["sft"],
    response_tokens=lambda text: [*text.encode("ascii")[:90], 2] if text != "?" else [],
)
"""A vocabulary of ASCII, in which a question mark cannot be rendered."""
HOW = LearnerSettings.model_validate(
    {"preset": "tiny", "objective": "sft", "warmup_updates": 0, "learning_rate": 3e-3, "minibatches": 1}
)


def seen(record: Any, offset: int = 0) -> Attempt:
    return attempt(record, 0, offset, SPEECH)


# --- rows


@pytest.mark.parametrize("step", [0, 1])
def test_a_demonstration_follows_the_exact_prompt_and_only_it_is_trained(step: int) -> None:
    record = with_demonstration(labelled("g", 0, 0.0, versions=(3, 5)), step, "!!")
    [tokens] = seen(record).demonstrations
    prompt = record["sequences"][0]["spans"][step]["start"]
    assert tokens.ids.tolist() == [*record["sequences"][0]["token_ids"][:prompt], 33, 33, 2]
    assert tokens.trained.tolist() == [prompt, prompt + 1, prompt + 2]
    assert np.isnan(tokens.logprobs).all()
    assert set(tokens.versions.tolist()) == {(3, 5)[step]}
    assert set(tokens.steps.tolist()) == {step}


def test_the_replaced_response_is_not_imitated() -> None:
    record = labelled("g", 0, 1.0)
    [sampled] = seen(record).sequences
    [own] = seen(with_demonstration(record, 1, "!")).sequences
    first = record["sequences"][0]["spans"][0]
    assert (
        own.trained.tolist()
        == list(range(first["start"], first["end"]))
        == sampled.trained[sampled.steps == 0].tolist()
    )
    assert own.ids.tolist() == sampled.ids[: first["end"]].tolist()
    assert own.logprobs.tolist() == sampled.logprobs[sampled.steps == 0].tolist()
    assert seen(with_demonstration(record, 0, "!")).sequences == ()


def test_other_objectives_ignore_demonstrations() -> None:
    record = labelled("g", 0, 0.0)
    plain, with_it = attempt(record), attempt(with_demonstration(record, 0, "!"))
    assert with_it.demonstrations == ()
    assert with_it.sequences[0].trained.tolist() == plain.sequences[0].trained.tolist()


@pytest.mark.parametrize(
    ("text", "prompt", "reason"),
    [("!", 0, "no_prompt"), ("!", 99, "no_prompt"), ("?", 4, "demonstration_form"), ("~", 4, "demonstration_form")],
)
def test_an_unusable_demonstration_excludes_an_attempt_with_nothing_else_to_imitate(
    text: str, prompt: int, reason: str
) -> None:
    failed, succeeded = (with_demonstration(labelled("g", 0, reward), 1, text) for reward in (0.0, 1.0))
    for record in (failed, succeeded):
        record["steps"][1]["prompt_tokens"] = prompt
    assert (seen(failed).untrainable, seen(failed).sequences) == (reason, ())
    assert (seen(succeeded).untrainable, len(seen(succeeded).sequences)) == ("", 1)
    assert seen(with_demonstration(failed, 0, "!")).untrainable == ""


def test_a_demonstration_longer_than_the_context_excludes_the_attempt() -> None:
    record = with_demonstration(labelled("g", 0, 0.0), 0, "!" * 60)
    assert attempt(record, limits=replace(SPEECH, max_length=64)).untrainable == "too_long"
    assert attempt(record, limits=replace(SPEECH, max_length=65)).untrainable == ""


# --- training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_the_policy_learns_the_demonstration(folder: Path, tmp_path: Path) -> None:
    hashes = set()
    for run in range(2):
        trainer = Trainer(folder, HOW)
        limits = trainer.limits("demo")
        group = [attempt(with_demonstration(labelled("g", n, 0.0), 0, "ans(3)"), limits=limits) for n in range(2)]
        for number in range(1, 31):
            figures = trainer.update(number, [group], version=0)
        assert figures["demonstrated_share"] == 1.0
        assert figures["loss"] < 0.1
        write_version(trainer.snapshot(), folder, tmp_path / str(run))
        hashes.add(sha256_of(tmp_path / f"{run}/weights/model.safetensors"))
    assert len(hashes) == 1
    [tokens] = group[0].demonstrations
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "1/weights")
    greedy = model(torch.from_numpy(tokens.ids)[None]).logits[0].argmax(-1)
    assert greedy[tokens.trained - 1].tolist() == tokens.ids[tokens.trained].tolist()


def test_successes_and_demonstrations_are_imitated_token_by_token(folder: Path) -> None:
    trainer = Trainer(folder, HOW)
    limits = trainer.limits("demo")
    group = [labelled("g", 0, 1.0), with_demonstration(labelled("g", 1, 0.0), 0, "ans(3)"), labelled("g", 2, 0.0)]
    attempts = [attempt(record, limits=limits) for record in group]
    figures = trainer.update(1, [attempts], version=0)
    imitated = [*attempts[0].sequences, *attempts[1].demonstrations]
    total = sum(tokens.trained.size for tokens in imitated)
    assert figures["demonstrated_share"] == pytest.approx(7 / total)
    assert figures["tokens"] == total
    logprobs = Trainer(folder, HOW).policy.logprobs(imitated)
    assert figures["loss"] == pytest.approx(-logprobs.mean().item(), rel=1e-5)


# --- the buffer


def imitating(**changes: Any) -> ReplayBuffer:
    return buffer(**({"signal": learning_signal_of(HOW), "requirements": REQUIREMENTS["sft"]} | changes))


def failures(group: str = "g", **fields: Any) -> list[Any]:
    return [labelled(group, number, 0.0, **fields) for number in range(SIZE)]


def late(number: int = 0, revision: int = 2, text: str | None = "!", offset: int = 10, **fields: Any) -> Attempt:
    record = labelled("g", number, 0.0, revision=revision, **fields)
    return seen(record if text is None else with_demonstration(record, 0, text), offset)


def drops_of(replay_buffer: ReplayBuffer) -> set[tuple[str, int, str]]:
    return {(drop.attempt.trajectory_id, drop.attempt.revision, drop.reason) for drop in replay_buffer.take_drops()}


def log_of(records: list[Any]) -> list[Attempt]:
    return [seen(record, offset) for offset, record in enumerate(records)]


def test_a_group_with_a_demonstration_yields_a_gradient() -> None:
    records = failures()
    assert imitation_signal(log_of(records)) == "no_success"
    with_demonstration(records[1], 0, "!")
    assert len(fold(imitating(), log_of(records)).take(1) or []) == 1


def test_a_late_demonstration_reopens_its_group_for_its_attempt_only() -> None:
    replay_buffer = fold(imitating(), log_of(failures()))
    assert {reason for _, _, reason in drops_of(replay_buffer)} == {"no_success"}
    fold(replay_buffer, [late(1), late(1, offset=11)])
    assert positions_of(replay_buffer.take(1)) == [(0, 10)]
    assert replay_buffer.dropped["duplicate"] == 1
    fold(replay_buffer, [late(2, offset=12), late(1, offset=13), late(1, 3, offset=14), late(0, text=None, offset=15)])
    assert positions_of(replay_buffer.take(1)) == [(0, 12)]
    assert drops_of(replay_buffer) == {("g/1", 3, "trained_on_older_revision"), ("g/0", 2, "reuse_bound")}
    assert replay_buffer.resume_offsets() == {0: 10}


def test_a_demonstration_withdrawn_before_training_is_not_trained() -> None:
    replay_buffer = fold(imitating(), [*log_of(failures()), late(1), late(1, 3, text=None, offset=11)])
    assert replay_buffer.take(1) is None
    assert {("g/1", 2, "superseded"), ("g/1", 3, "no_success")} <= drops_of(replay_buffer)


def test_a_demonstration_many_versions_later_is_still_imitated() -> None:
    replay_buffer = fold(imitating(version=1), log_of(failures()))
    replay_buffer.advance(20)
    fold(replay_buffer, [late(1)])
    replay_buffer.advance(40)
    assert positions_of(replay_buffer.take(1)) == [(0, 10)]
    replay_buffer.advance(60)
    fold(replay_buffer, [late(1, offset=11), late(1, 3, offset=12)])
    assert (replay_buffer.ready(), replay_buffer.waiting(), replay_buffer.dropped["duplicate"]) == (0, 0, 1)
    assert ("g/1", 3, "trained_on_older_revision") in drops_of(replay_buffer)


def test_a_demonstration_of_an_incomplete_group_is_used_when_the_wait_ends() -> None:
    records = failures()[:2]
    replay_buffer = fold(imitating(), [seen(records[0]), seen(with_demonstration(records[1], 0, "!"), 1)])
    replay_buffer.expire_groups(10.0)
    assert positions_of(replay_buffer.take(1)) == [(0, 0), (0, 1)]
    fold(replay_buffer, [attempt_at(seen(records[0]), 2)])
    replay_buffer.expire_groups(20.0)
    assert (drops_of(replay_buffer), replay_buffer.dropped["duplicate"]) == (set(), 1)


def test_a_demonstration_reopens_a_trained_group_after_a_crash() -> None:
    log = [*log_of(failures()), late(1), late(2, offset=11)]
    replay_buffer = fold(imitating(trained=[(0, 10)]), log)
    assert positions_of(replay_buffer.take(1)) == [(0, 11)]
    assert replay_buffer.take(1) is None


@given(st.lists(st.tuples(st.integers(0, SIZE - 1), st.booleans()), min_size=1, max_size=6), st.data())
def test_late_demonstrations_and_crashes_never_train_an_attempt_twice(
    revised: list[tuple[int, bool]], data: Any
) -> None:
    records = failures()
    for place, (number, is_shown) in enumerate(revised):
        record = labelled("g", number, 0.0, revision=2 + place)
        records.append(with_demonstration(record, 0, "!") if is_shown else record)
    log = log_of(records)
    log += [attempt_at(each, len(log) + i, each.revision) for i, each in enumerate(log)]
    trained: list[LogPosition] = []
    replay_buffer, version, resume, published, position = imitating(), 0, {0: 0}, 0, 0
    for action in data.draw(st.lists(st.sampled_from(["read", "publish", "give up", "crash"]), max_size=12)):
        if action == "read":
            upto = data.draw(st.integers(position, len(log)))
            fold(replay_buffer, log[position:upto])
            position = upto
        elif action == "give up":
            replay_buffer.expire_groups(100.0)
        elif action == "publish" and version < 2:
            version, resume, published = version + 1, replay_buffer.resume_offsets(), len(trained)
            replay_buffer.advance(version)
        elif action == "crash":
            del trained[published:]
            position = resume[0]
            again = [place for place in trained if place[1] >= resume[0]]
            replay_buffer = imitating(positions=resume, version=version, trained=again)
        trained += positions_of(replay_buffer.take(1))
    for each in log[position:]:
        replay_buffer.add(each, 0.0)
        trained += positions_of(replay_buffer.take(1))
    replay_buffer.expire_groups(100.0)
    trained += positions_of(replay_buffer.take(1))
    names = [log[offset].trajectory_id for _, offset in trained]
    assert len(names) == len(set(names))


def test_a_trained_failure_is_not_trained_again_for_a_late_demonstration() -> None:
    replay_buffer = fold(imitating(), log_of(group_of("g", SIZE)))
    assert replay_buffer.take(1)
    fold(replay_buffer, [late(1)])
    assert drops_of(replay_buffer) == {("g/1", 2, "trained_on_older_revision")}
