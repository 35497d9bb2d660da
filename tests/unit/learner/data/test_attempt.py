"""Check how a labelled trajectory becomes an attempt, or why it is excluded."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from labelled_records import LIMITS, attempt, labelled

from stepstream.learner.data.attempt import attempt_of
from stepstream.learner.data.sequences import Invalid, Limits
from stepstream.topics.events import SamplingMask, new_sampling_mask


def test_trained_tokens_carry_their_logprob_and_version() -> None:
    record = labelled("g", 0, 1.0, versions=(3, 5))
    sequence = record["sequences"][0]
    (tokens,) = attempt(record).sequences
    first, second = sequence["spans"]
    expected = [*range(first["start"], first["end"]), *range(second["start"], second["end"])]
    assert tokens.trained.tolist() == expected
    assert tokens.versions.tolist() == [3] * (first["end"] - first["start"]) + [5] * (second["end"] - second["start"])
    assert tokens.logprobs.tolist() == np.array(sequence["logprobs"], np.float32).tolist()
    assert tokens.ids.tolist() == sequence["token_ids"][: second["end"]]
    assert attempt(record).version_min == 3


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"split": "eval"}, "split"),
        ({"model": "other"}, "other_model"),
        ({"group_id": None}, "no_group"),
        ({"consent": "analyse"}, "consent"),
        ({"fidelity": "text"}, "fidelity"),
        ({"trainable": False}, "not_trainable"),
        ({"trainable": False, "success": None}, "no_outcome"),
        ({"sequences": []}, "no_trained_tokens"),
    ],
)
def test_an_excluded_attempt_has_a_reason(fields: dict[str, Any], reason: str) -> None:
    result = attempt(labelled("g", 0, 1.0, **fields))
    assert result.untrainable == reason
    assert result.sequences == ()


def test_an_attempt_without_a_group_is_accepted_if_attempts_count_alone() -> None:
    taken = attempt_of(labelled("g", 0, 1.0, group_id=None), (0, 0), replace(LIMITS, takes_single=True))
    assert (taken.untrainable, taken.group_id) == ("", "")
    assert taken.sequences


def test_a_span_of_another_model_excludes_the_attempt() -> None:
    record = labelled("g", 0, 1.0)
    record["sequences"][0]["spans"][1]["model"] = "other"
    assert attempt(record).untrainable == "other_model"


def test_a_sequence_longer_than_the_context_excludes_the_attempt() -> None:
    assert attempt_of(labelled("g", 0, 1.0), (0, 0), Limits("demo", 99, 5)).untrainable == "too_long"


def mask_of(sequence: Any, ids: list[int]) -> SamplingMask:
    """Return a mask with two ids of the first token, of which `ids` are given."""
    return new_sampling_mask(counts=[2, *[0] * (len(sequence["logprobs"]) - 1)], token_ids=ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["logprobs"].pop(), "log-probabilities"),
        (lambda s: s["spans"][0].update(start=0), "span 0:"),
        (lambda s: s["spans"][1].update(end=99), ":99"),
        (lambda s: s["spans"].reverse(), "span"),
        (lambda s: s["spans"][0].update(version=-1), "version -1"),
        (lambda s: s["token_ids"].__setitem__(0, 99), "token id"),
        (lambda s: s["token_ids"].__setitem__(0, -1), "token id"),
        (lambda s: s["spans"][1].update(step_index=7), "span of step 7"),
        (lambda s: s["spans"][1].update(temperature=0.0), "temperature 0.0"),
        (lambda s: s["spans"][1].update(temperature=0.0, restriction="truncated"), "restriction 'truncated'"),
        (lambda s: s.update(sampling_mask=new_sampling_mask(counts=[1], token_ids=[1])), "mask of 1 tokens"),
        (lambda s: s.update(sampling_mask=mask_of(s, [1])), "and 1 ids"),
        (lambda s: s.update(sampling_mask=mask_of(s, [1, 99])), "in a sampling mask"),
        (lambda s: s["spans"][1].update(temperature=float("nan")), "temperature nan"),
    ],
)
def test_contradicting_records_are_invalid(change: Any, message: str) -> None:
    record = labelled("g", 0, 1.0)
    change(record["sequences"][0])
    with pytest.raises(Invalid, match=message):
        attempt_of(record, (0, 0), LIMITS)


def test_an_unknown_restriction_excludes_its_tokens() -> None:
    record = labelled("g", 0, 1.0)
    record["sequences"][0]["spans"][0]["restriction"] = "later"
    found = attempt(record)
    assert (found.untrainable, set(found.sequences[0].steps.tolist())) == ("", {1})
    record["sequences"][0]["spans"][1]["restriction"] = "later"
    assert attempt(record).untrainable == "restricted_sampling"


def test_a_mask_makes_truncated_tokens_trainable() -> None:
    record = labelled("g", 0, 1.0)
    sequence = record["sequences"][0]
    first, second = (span["end"] - span["start"] for span in sequence["spans"])
    chosen = [sequence["token_ids"][at] for span in sequence["spans"] for at in range(span["start"], span["end"])]
    sequence["spans"][0]["restriction"] = sequence["spans"][1]["restriction"] = "truncated"
    without = attempt(record)
    assert (without.untrainable, without.sequences) == ("truncated_sampling", ())
    # The second token's ids were too many to be recorded.
    counts = [2 if at != 1 else 0 for at in range(first + second)]
    ids = [token for at, token in enumerate(chosen) if at != 1 for token in (0, token)]
    sequence["sampling_mask"] = new_sampling_mask(counts=counts, token_ids=ids)
    found = attempt(record)
    [tokens] = found.sequences
    assert (found.untrainable, found.restricted_tokens, tokens.trained.size) == ("", 1, first + second - 1)
    assert tokens.kept is not None
    assert (tokens.kept.counts.tolist(), tokens.kept.ids.tolist()) == ([2] * (first + second - 1), ids)


def test_a_mask_without_the_sampled_token_excludes_its_span() -> None:
    record = labelled("g", 0, 1.0)
    sequence = record["sequences"][0]
    sizes = [span["end"] - span["start"] for span in sequence["spans"]]
    sequence["spans"][0]["restriction"] = "grammar"
    missing = (sequence["token_ids"][sequence["spans"][0]["start"]] + 1) % LIMITS.vocabulary
    rest = [0] * (sum(sizes) - 1)
    mask = sequence["sampling_mask"] = new_sampling_mask(counts=[1, *rest], token_ids=[missing])
    found = attempt(record)
    assert (found.untrainable, found.restricted_tokens, set(found.sequences[0].steps.tolist())) == ("", sizes[0], {1})
    del sequence["spans"][1], sequence["logprobs"][sizes[0] :], mask["counts"][sizes[0] :]
    assert attempt(record).untrainable == "sampling_mask"


def test_a_response_in_two_sequences_is_invalid() -> None:
    record = labelled("g", 0, 1.0)
    record["sequences"] *= 2
    with pytest.raises(Invalid, match="two sequences contain"):
        attempt(record)


@pytest.mark.parametrize("reward", [float("nan"), -float("inf"), 1e200])
def test_a_reward_beyond_the_limit_is_invalid(reward: float) -> None:
    for record in (labelled("g", 0, reward), labelled("g", 0, 0.0)):
        record["steps"][0]["reward"] = reward
        with pytest.raises(Invalid, match="reward"):
            attempt(record)
