"""Training sequences: as few as the prefixes allow, and never a wrong token."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from fold_harness import LocalCodec
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_records import as_governed, make_steps

from stepstream.jobs.labels import sequences
from stepstream.jobs.labels.sequences import join_sequences
from stepstream.topics.encoded_array import EncodedArray
from stepstream.topics.events import Step, new_policy_span, new_sampling, new_sampling_mask
from stepstream.topics.ids import token_digest
from stepstream.topics.step_contexts import shared_step


def governed(steps: list[Step]) -> list[Step]:
    return [as_governed(step) for step in steps]


def tokens_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in (*step["prompt_token_ids"], *step["response_token_ids"])]


def some_encoded(data: st.DataObject, steps: list[Step]) -> list[Step]:
    """Return the steps, some of them with encoded arrays, as a job decodes them."""
    encoded = data.draw(st.sets(st.sampled_from(range(len(steps))))) if steps else set()
    return [decoded(step) if place in encoded else step for place, step in enumerate(steps)]


def decoded(step: Step) -> Step:
    codec = LocalCodec()
    return cast(Step, codec.decode("governed-steps", codec.encode("governed-steps", step)))


def test_an_append_only_context_is_one_sequence() -> None:
    steps = governed(make_steps("t", 4))
    joined = join_sequences(steps)
    [sequence] = joined.sequences
    assert sequence["token_ids"] == tokens_of(steps)
    assert [(s["step_index"], s["start"], s["end"]) for s in sequence["spans"]] == [
        (0, 5, 9),
        (1, 14, 18),
        (2, 23, 27),
        (3, 32, 36),
    ]
    assert sequence["logprobs"] == [lp for step in steps for lp in step["response_logprobs"]]
    assert joined.trainable == [True] * 4
    assert joined.faults == []


def test_an_edited_context_begins_a_new_sequence_with_the_shared_prefix() -> None:
    steps = governed(make_steps("t", 3))
    context = tokens_of(steps[:2])
    steps[2] |= {"prompt_shared_tokens": 7, "prompt_shared_digest": token_digest(context[:7])}
    joined = join_sequences(steps)
    assert [sequence["token_ids"] for sequence in joined.sequences] == [
        context,
        context[:7] + steps[2]["prompt_token_ids"] + steps[2]["response_token_ids"],
    ]
    # A response in the repeated part is trained on once only.
    assert [span["step_index"] for sequence in joined.sequences for span in sequence["spans"]] == [0, 1, 2]


def test_a_whole_prompt_that_continues_the_context_extends_the_sequence() -> None:
    first, second = governed(make_steps("t", 2))
    second |= {
        "prompt_token_ids": tokens_of([first]) + second["prompt_token_ids"],
        "prompt_shared_tokens": 0,
        "prompt_shared_digest": None,
    }
    [sequence] = join_sequences([first, second]).sequences
    assert sequence["token_ids"] == second["prompt_token_ids"] + second["response_token_ids"]


def test_a_prefix_that_does_not_match_falls_back_to_text() -> None:
    steps = governed(make_steps("t", 3))
    steps[1]["prompt_shared_digest"] = token_digest([1, 2, 3])
    joined = join_sequences(steps)
    assert joined.faults == ["prefix:mismatch", "prefix:missing"]
    assert joined.text == [False, True, True]
    [sequence] = joined.sequences
    assert sequence["token_ids"] == tokens_of(steps[:1])


def test_a_prefix_longer_than_the_context_falls_back_to_text() -> None:
    steps = governed(make_steps("t", 2))
    steps[1]["prompt_shared_tokens"] = 99
    assert join_sequences(steps).faults == ["prefix:mismatch"]


def test_a_missing_step_breaks_the_chain() -> None:
    steps = governed(make_steps("t", 3))
    joined = join_sequences([steps[0], steps[2]])
    assert joined.faults == ["prefix:missing"]
    assert joined.trainable == [True, False]


def test_the_loss_mask_and_versions_split_spans() -> None:
    [step] = governed(make_steps("t", 1, response_tokens=6))
    step["loss_mask"] = [True, True, False, True, True, True]
    step["policy_spans"] = [
        new_policy_span(start=0, end=4, model="m", version=1),
        new_policy_span(start=4, end=6, model="m", version=2),
    ]
    [sequence] = join_sequences([step]).sequences
    assert [(s["start"] - 5, s["end"] - 5, s["version"]) for s in sequence["spans"]] == [
        (0, 2, 1),
        (3, 4, 1),
        (4, 6, 2),
    ]
    assert sequence["logprobs"] == [step["response_logprobs"][i] for i in (0, 1, 3, 4, 5)]


def test_spans_carry_temperature_and_restriction_of_their_step() -> None:
    steps = governed(make_steps("t", 3))
    steps[0]["sampling"] = new_sampling(temperature=0.7)
    steps[1]["sampling"] = new_sampling(temperature=0.0, top_p=0.5)
    steps[2]["sampling"] = new_sampling(constraint="json_schema", top_k=5)
    [sequence] = join_sequences(steps).sequences
    assert [(span["temperature"], span["restriction"]) for span in sequence["spans"]] == [
        (0.7, ""),
        (0.0, "greedy"),
        (1.0, "truncated"),
    ]


@given(st.data())
def test_each_trained_token_keeps_its_sampling_mask(data: st.DataObject) -> None:
    steps = governed(make_steps("t", 3, response_tokens=4))
    expected: list[list[int]] = []
    for step in steps:
        kept = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=4, max_size=4))
        fields: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"constraint": "regex"}, {"presence_penalty": 1.0}]
        sampling = data.draw(st.sampled_from(fields))
        step["sampling"] = new_sampling(**sampling)
        step["loss_mask"] = data.draw(st.just([]) | st.lists(st.booleans(), min_size=4, max_size=4))
        has_mask = data.draw(st.booleans())
        if has_mask:
            ids = [token for each in kept for token in each]
            step["sampling_mask"] = new_sampling_mask(counts=[len(each) for each in kept], token_ids=ids)
        counts = has_mask and "presence_penalty" not in sampling  # the ids say nothing of penalised logits
        trained = step["loss_mask"] or [True] * 4
        expected += [each if counts else [] for each, is_trained in zip(kept, trained, strict=True) if is_trained]
    sequences = join_sequences(some_encoded(data, steps)).sequences
    masks = [sequence["sampling_mask"] for sequence in sequences]
    if not any(expected):
        assert not any(masks)
        return
    [mask] = masks
    assert mask is not None
    assert list(mask["counts"]) == [len(each) for each in expected]
    assert list(mask["token_ids"]) == [token for each in expected for token in each]


def test_untrainable_steps_are_context_only() -> None:
    steps = governed(make_steps("t", 2))
    steps[0]["governed"]["trainable"] = False  # type: ignore[index]
    [sequence] = join_sequences(steps).sequences
    assert sequence["token_ids"] == tokens_of(steps)
    assert [span["step_index"] for span in sequence["spans"]] == [1]
    steps[1]["consent"] = "analyse"
    assert join_sequences(steps).sequences == []


def test_steps_below_token_fidelity_have_no_tokens() -> None:
    steps = governed(make_steps("t", 2))
    steps[0] |= {"fidelity": "text", "response_token_ids": [], "response_logprobs": [], "policy_spans": []}
    joined = join_sequences(steps)
    assert joined.sequences == []
    assert joined.faults == ["fidelity:text", "prefix:missing"]


@st.composite
def contexts(draw: st.DrawFn) -> tuple[list[Step], list[list[int]]]:
    """Steps whose contexts grow, are cut or start anew, with the true full prompt of each."""
    steps: list[Step] = []
    prompts: list[list[int]] = []
    context: list[int] = []
    template = make_steps("t", 1)[0]
    for index in range(draw(st.integers(1, 6))):
        shared = draw(st.sampled_from([0, len(context) // 2, len(context), len(context)]))
        prompt = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
        response = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
        fields: dict[str, Any] = {
            "step_index": index,
            "prompt_shared_tokens": shared,
            "prompt_shared_digest": token_digest(context[:shared]) if shared else None,
            "prompt_token_ids": prompt,
            "response_token_ids": response,
            "response_logprobs": [-float(index + 1)] * len(response),
            "policy_spans": [new_policy_span(start=0, end=len(response), model="m", version=index)],
        }
        steps.append(as_governed(template | fields))
        prompts.append(context[:shared] + prompt)
        context = prompts[-1] + response
    return steps, prompts


@settings(max_examples=200)
@given(contexts(), st.data())
def test_every_span_follows_its_exact_prompt(made: tuple[list[Step], list[list[int]]], data: st.DataObject) -> None:
    """The law: in front of each response stand exactly the tokens of its prompt; each response is trained on once."""
    steps, prompts = made
    lost = data.draw(st.sets(st.integers(0, len(steps) - 1)))
    remaining = [step for step in steps if step["step_index"] not in lost]
    joined = join_sequences(some_encoded(data, remaining))
    trained: list[int] = []
    for sequence in joined.sequences:
        at = 0
        for span in sequence["spans"]:
            index = span["step_index"]
            trained.append(index)
            assert sequence["token_ids"][: span["start"]] == prompts[index]
            assert sequence["token_ids"][span["start"] : span["end"]] == steps[index]["response_token_ids"]
            length = span["end"] - span["start"]
            assert sequence["logprobs"][at : at + length] == [-float(index + 1)] * length
            at += length
        assert at == len(sequence["logprobs"])
    assert sorted(trained) == [s["step_index"] for s, t in zip(remaining, joined.trainable, strict=True) if t]
    assert len(set(trained)) == len(trained)
    if not lost:
        assert len(trained) == len(steps)


def test_a_branch_begins_with_the_shared_tokens_and_trains_only_on_its_own_response() -> None:
    trunk = governed(make_steps("t", 2))
    [other] = governed(make_steps("t", 1, seed=1))
    context = tokens_of(trunk[:1])
    branch = other | {
        "step_index": 2,
        "prompt_shared_step": 0,
        "prompt_shared_tokens": len(context),
        "prompt_shared_digest": token_digest(context),
    }
    joined = join_sequences([*trunk, branch])
    assert [sequence["token_ids"] for sequence in joined.sequences] == [tokens_of(trunk), context + tokens_of([other])]
    assert [[s["step_index"] for s in sequence["spans"]] for sequence in joined.sequences] == [[0, 1], [2]]
    assert [shared_step(step) for step in (*trunk, branch)] == [None, 0, 0]


def test_a_branch_from_a_step_that_is_missing_or_later_has_no_tokens() -> None:
    first, second = governed(make_steps("t", 2))
    for named in (5, 1, -1):
        assert join_sequences([first, second | {"prompt_shared_step": named}]).faults == ["prefix:missing"]


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Step], dict[int, list[int]]]:
    """Steps that continue, cut or branch any earlier context, or begin anew; with the true full prompt of each."""
    steps: list[Step] = []
    prompts: dict[int, list[int]] = {}
    template = make_steps("t", 1)[0]
    for index in range(draw(st.integers(1, 9))):
        parent = draw(st.integers(-1, index - 1))
        context = prompts[parent] + steps[parent]["response_token_ids"] if parent >= 0 else []
        shared = len(context) if draw(st.booleans()) else draw(st.integers(0, len(context)))
        prompt = draw(st.lists(st.integers(0, 2), min_size=0 if shared else 1, max_size=3))
        response = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
        fields: dict[str, Any] = {
            "step_index": index,
            "prompt_shared_step": None if parent in (-1, index - 1) and draw(st.booleans()) else max(parent, 0),
            "prompt_shared_messages": 0,
            "prompt_shared_tokens": shared,
            "prompt_shared_digest": token_digest(context[:shared]) if shared else None,
            "prompt_token_ids": prompt,
            "response_token_ids": response,
            "response_logprobs": [-float(index + 1)] * len(response),
            "policy_spans": [new_policy_span(start=0, end=len(response), model="m", version=index)],
        }
        steps.append(as_governed(template | fields))
        prompts[index] = context[:shared] + prompt
    return steps, prompts


@settings(max_examples=300)
@given(trees(), st.data())
def test_in_any_tree_each_response_follows_its_prompt_once(
    made: tuple[list[Step], dict[int, list[int]]], data: st.DataObject
) -> None:
    """The law for branches, compaction, edits and several roots; and lost steps never give a wrong token."""
    steps, prompts = made
    lost = data.draw(st.sets(st.integers(0, len(steps) - 1)) if data.draw(st.booleans()) else st.just(set()))
    joined = join_sequences(some_encoded(data, [step for step in steps if step["step_index"] not in lost]))
    trained: list[int] = []
    for sequence in joined.sequences:
        last = sequence["spans"][-1]["step_index"]
        tokens = prompts[last] + steps[last]["response_token_ids"]
        assert sequence["token_ids"][: len(tokens)] == tokens
        for span in sequence["spans"]:
            index = span["step_index"]
            trained.append(index)
            assert sequence["token_ids"][: span["start"]] == prompts[index]
            assert sequence["token_ids"][span["start"] : span["end"]] == steps[index]["response_token_ids"]
    assert len(trained) == len(set(trained)) == sum(joined.trainable)
    if not lost:
        assert sorted(trained) == list(range(len(steps)))
        assert all(len(s["token_ids"]) == s["spans"][-1]["end"] for s in joined.sequences)


def test_a_long_context_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = 0

    def counted(tokens: Sequence[int]) -> bytes:
        nonlocal hashed
        hashed += len(tokens)
        return packed(tokens)

    packed = sequences._packed
    monkeypatch.setattr(sequences, "_packed", counted)
    steps = governed(make_steps("t", 100, prompt_tokens=5, response_tokens=5))
    [sequence] = join_sequences(steps).sequences
    assert len(sequence["token_ids"]) == 1000
    assert hashed == 990  # no step continues the last one


def test_encoded_arrays_are_joined_without_decoding_those_of_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [decoded(step) for step in governed(make_steps("t", 1))]
    expected = tokens_of(steps)
    monkeypatch.setattr(EncodedArray, "to_list", None)
    [sequence] = join_sequences(steps).sequences
    monkeypatch.undo()
    assert sequence["token_ids"] == expected
