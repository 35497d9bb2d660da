"""Check the table of requirements, and that admission, buffer and figures follow it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from buffers import SIZE, buffer, fold, log_of, positions_of
from labelled_records import LIMITS, attempt, labelled, text_record, tiny_model, with_demonstration

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.drop_reasons import REASONS, REMEDIES, Drop
from stepstream.learner.data.learning_signal import learning_signal_of, needs_group
from stepstream.learner.data.requirements import REQUIREMENTS, requirements_of
from stepstream.learner.data.sequences import UNVERSIONED, Limits, ResponseSpan
from stepstream.learner.decisions import Decider
from stepstream.learner.training.preference import Preference
from stepstream.learner.training.trainer import Trainer

OBJECTIVES = ("policy_gradient", "dpo", "kto", "sft")
BY_TEXT = ("dpo", "kto", "sft")


def config(objective: str, **fields: Any) -> LearnerSettings:
    return LearnerSettings.model_validate(
        {"preset": "tiny", "objective": objective, "warmup_updates": 0, "minibatches": 1, **fields}
    )


def response_spans(conversation: Any) -> list[ResponseSpan]:
    """A byte a token, in place of a tokenizer."""
    ids: list[int] = []
    spans = []
    for place, message in enumerate(conversation["messages"]):
        begin, steps = len(ids), [s["step_index"] for s in conversation["spans"] if s["message"] == place]
        ids += message["content"].encode("ascii")
        spans += [(begin, len(ids), step) for step in steps]
    return [ResponseSpan(ids, spans)]


def limits(objective: str, **changes: Any) -> Limits:
    values: dict[str, Any] = {
        "vocabulary": 128,
        "requirements": REQUIREMENTS[objective],
        "takes_single": objective != "policy_gradient" and not needs_group(config(objective)),
        "response_tokens": lambda text: [*text.encode("ascii"), 2] if text != "?" else [],
        "conversation_sequences": response_spans,
    }
    return replace(LIMITS, **(values | changes))


def test_every_objective_has_requirements() -> None:
    assert set(REQUIREMENTS) == set(get_args(LearnerSettings.model_fields["objective"].annotation)) == set(OBJECTIVES)
    assert [name for name in OBJECTIVES if requirements_of(config(name)).sampled] == ["policy_gradient"]
    assert all(needs.fresh == needs.sampled for needs in REQUIREMENTS.values())


# --- admission


def text(**fields: Any) -> Any:
    return text_record("t", "qa", 1.0, **({"group": "g", "model": "demo"} | fields))


@pytest.mark.parametrize(
    ("record", "bars"),
    [
        (labelled("g", 0, 1.0), ("", "", "", "")),
        (labelled("g", 0, 1.0, model="other"), ("other_model",) * 4),
        (labelled("", 0, 1.0), ("no_group", "no_group", "", "")),
        (with_demonstration(labelled("", 0, 1.0), 0, "!"), ("no_group", "", "", "")),
        (text(), ("fidelity", "", "", "")),
        (text(model="gpt"), ("other_model", "", "", "")),
        (text(model="", group=None), ("other_model", "no_group", "", "")),
        (text(model="other", version_min=3), ("other_model",) * 4),
        (text(version_min=3), ("fidelity", "", "", "")),
        (text(fidelity="span"), ("fidelity",) * 4),
        (text(consent="analyse"), ("consent",) * 4),
        (text(split="eval"), ("split",) * 4),
        (text(trainable=False), ("fidelity", *("not_trainable",) * 3)),
        (text(trainable=False, success=None), ("fidelity", *("no_outcome",) * 3)),
        (text(conversations=[]), ("fidelity", *("conversation_form",) * 3)),
        (text_record("t", ("q", "a" * 600), 1.0, group="g"), ("other_model", *("too_long",) * 3)),
    ],
)
def test_each_objective_excludes_records_that_it_cannot_use(record: Any, bars: tuple[str, ...]) -> None:
    assert tuple(attempt(record, limits=limits(name)).untrainable for name in OBJECTIVES) == bars
    assert {bar for bar in bars if bar} <= REASONS.keys() & REMEDIES.keys()


def test_text_becomes_tokens_that_no_policy_sampled() -> None:
    made = attempt(text_record("t", ("what", "ab", "and", "c"), 1.0), limits=limits("sft"))
    [tokens] = made.sequences
    assert bytes(tokens.ids.tolist()) == b"whatabandc"
    assert (tokens.trained.tolist(), tokens.steps.tolist()) == ([4, 5, 9], [0, 0, 1])
    assert np.isnan(tokens.logprobs).all()
    assert set(tokens.versions.tolist()) == {UNVERSIONED}
    assert (made.version_min, made.staleness(7)) == (None, None)


def test_a_token_id_outside_the_vocabulary_is_not_trained() -> None:
    assert attempt(text(), limits=limits("dpo", vocabulary=64)).untrainable == "conversation_form"


# --- demonstrations


def corrected(demonstration: str, **fields: Any) -> Any:
    """Text whose second answer somebody corrected."""
    record = text_record("t", ("what", "ab", "and", "c"), 0.0, **({"group": "g"} | fields))
    record["steps"][1]["demonstration"] = demonstration
    return record


@pytest.mark.parametrize("record", [with_demonstration(labelled("g", 0, 0.0), 1, "!!"), corrected("!!")])
def test_a_demonstration_replaces_the_answer_or_is_preferred_to_it(record: Any) -> None:
    imitated, preferred, unused = (attempt(record, limits=limits(name)) for name in ("sft", "dpo", "kto"))
    assert [set(tokens.steps.tolist()) for tokens in imitated.sequences] == [{0}]
    assert [set(tokens.steps.tolist()) for tokens in preferred.sequences] == [{0, 1}]
    assert unused.demonstrations == ()
    [own] = preferred.sequences
    first = int(own.trained[own.steps == 1][0])
    for made in (imitated, preferred):
        assert [each.ids.tolist() for each in made.demonstrations] == [[*own.ids[:first].tolist(), 33, 33, 2]]


def test_a_demonstration_and_the_replaced_answer_are_a_pair() -> None:
    attempts = [attempt(each, limits=limits("dpo")) for each in (corrected("!!"), labelled("g", 0, 0.0))]
    assert learning_signal_of(config("dpo"))(attempts) == ""  # although both failed
    [[better, worse]] = Preference(config("dpo")).comparisons([attempts])
    assert better.reward > worse.reward
    assert [bytes(each.sequences[0].ids.tolist()) for each in (better, worse)] == [b"whataband!!\x02", b"whatabandc"]
    assert [each.sequences[0].trained.tolist() for each in (better, worse)] == [[9, 10, 11], [9]]
    alone = attempt(corrected("!!", group=None), limits=limits("dpo"))
    assert (alone.untrainable, learning_signal_of(config("dpo"))([alone])) == ("", "")
    assert attempt(corrected("?", group=None), limits=limits("dpo")).untrainable == "demonstration_form"
    assert attempt(corrected("?"), limits=limits("dpo")).untrainable == ""  # its group may still make a pair of it


def test_attempts_with_different_rewards_are_compared_in_addition_to_demonstrations() -> None:
    records = [corrected("!!"), text_record("u", "qa", 1.0, group="g")]
    attempts, pair = Preference(config("dpo")).comparisons(
        [[attempt(record, limits=limits("dpo")) for record in records]]
    )
    assert [answer.reward for answer in attempts] == [0.0, 1.0]
    assert len(pair) == 2


# --- the buffer


def pair_log(name: str, count: int = 2) -> list[Attempt]:
    return [attempt(text_record(f"t{n}", "qa", float(n == 0), group="g"), 0, n, limits(name)) for n in range(count)]


@pytest.mark.parametrize("name", BY_TEXT)
def test_an_incomplete_group_is_trained_after_the_wait(name: str) -> None:
    replay_buffer = fold(
        buffer(signal=learning_signal_of(config(name)), requirements=REQUIREMENTS[name], version=50, root=40),
        pair_log(name),
    )
    assert replay_buffer.take(1) is None
    replay_buffer.expire_groups(10.0)
    assert positions_of(replay_buffer.take(1)) == [(0, 0), (0, 1)]
    assert replay_buffer.take_drops() == []


def test_an_incomplete_group_without_a_pair_is_closed() -> None:
    replay_buffer = fold(
        buffer(signal=learning_signal_of(config("dpo")), requirements=REQUIREMENTS["dpo"]), pair_log("dpo", 1)
    )
    replay_buffer.expire_groups(10.0)
    assert [drop.reason for drop in replay_buffer.take_drops()] == ["group_incomplete"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_only_ratios_need_fresh_tokens_of_the_lineage(name: str) -> None:
    records = [labelled("g", n, float(n == 0), versions=(3, 3)) for n in range(SIZE)]
    reasons = []
    for version, root in ((9, 0), (5, 4)):
        replay_buffer = buffer(
            signal=learning_signal_of(config(name)), requirements=REQUIREMENTS[name], version=version, root=root
        )
        reasons.append({drop.reason for drop in fold(replay_buffer, log_of(*records)).take_drops()})
    assert reasons == ([{"stale"}, {"other_lineage"}] if REQUIREMENTS[name].fresh else [set(), set()])


def test_text_without_versions_has_no_staleness_in_figures_and_decisions() -> None:
    assert Decider("demo", 0).dropped(Drop(pair_log("dpo")[0], "group_over"), 7)["staleness"] is None


# --- training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", BY_TEXT)
def test_text_of_any_author_is_trained_on(folder: Path, name: str) -> None:
    trainer = Trainer(folder, config(name, learning_rate=3e-3), folder)
    own, answers = trainer.limits("demo"), (("so it is", 1.0), ("no", 0.0))
    records = [
        [text_record(f"{g}/{n}", (f"{g}?", answers[n][0]), answers[n][1], group=f"{g}") for n in (0, 1)]
        for g in range(3)
    ]
    groups = [[attempt(record, limits=own) for record in group] for group in records]
    assert {each.untrainable for group in groups for each in group} == {""}
    figures = [trainer.update(number, groups, version=7) for number in range(1, 9)]
    assert figures[-1]["loss"] < figures[0]["loss"] - 1e-2
    assert figures[-1]["preferred_share"] == (0.5 if name == "sft" else 1.0)
    assert (figures[0]["staleness_mean"], figures[0]["staleness_max"], figures[0]["kl"]) == (0.0, 0.0, 0.0)
    if name == "dpo":
        assert figures[0]["preferred_margin"] == pytest.approx(0.0, abs=1e-6)
        assert figures[-1]["preferred_margin"] > 1.0
