"""Test chat templating: equal to transformers, append-only, and an exact round trip of sampled tokens."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import tiny_model

from stepstream.services.fleet.lookup import Lookup
from stepstream.services.inference.chat_tokenizer import ChatTokenizer, StreamedText, TemplateError
from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.tool_parsers import CallLine

EOS = 2
TOOLS = ["get", "calc"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "m", 0)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ChatTokenizer:
    return ChatTokenizer(folder)


def assistant(tokenizer: ChatTokenizer, response: list[int]) -> dict[str, Any]:
    """The message that an agent appends for this response."""
    text = tokenizer.text(response)
    call = CallLine().parse(text, TOOLS)
    if call is None:
        return {"role": "assistant", "content": text}
    function = {"name": call.name, "arguments": json.loads(call.arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}


@given(
    responses=st.lists(
        st.one_of(
            st.lists(st.integers(0, 99).filter(lambda token: token != EOS), max_size=12),
            st.sampled_from(["get(a)", "calc(1+2)", "get()", "get((a))", "get(a", "put(a)", "ans(3)"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_next_prompt_is_the_last_prompt_the_response_and_the_new_messages(
    tokenizer: ChatTokenizer, responses: list[list[int] | str]
) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q:a+c"}]
    prompt = tokenizer.prompt_ids(messages, [])
    for response in responses:
        ids = (
            tokenizer.prompt_ids([{"role": "user", "content": response}], [])[1:-1]
            if isinstance(response, str)
            else response
        )
        sampled = [*ids, EOS]
        messages += [assistant(tokenizer, sampled), {"role": "tool", "content": "5", "tool_call_id": "c"}]
        following = tokenizer.prompt_ids(messages, [])
        tool = tokenizer.prompt_ids([{"role": "tool", "content": "5"}], [])[1:]
        assert following == [*prompt, *sampled, *tool]
        prompt = following


def test_prompts_equal_those_of_transformers(folder: Path, tokenizer: ChatTokenizer) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(folder)
    attempt = Lookup(next(Lookup.tasks(0, "train")))
    conversation = [{"role": "system", "content": "be <eos> brief"}, *attempt.demonstration(random.Random(0), 0.3)]
    for length in range(1, len(conversation) + 1):
        messages = conversation[:length]
        rendered = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        expected = reference(rendered, add_special_tokens=False)["input_ids"]
        assert tokenizer.prompt_ids(messages, []) == expected


def test_a_call_without_the_template_s_argument_is_rejected(tokenizer: ChatTokenizer) -> None:
    call = {"function": {"name": "get", "arguments": {"key": "a"}}}
    with pytest.raises(TemplateError, match="cannot render"):
        tokenizer.prompt_ids([{"role": "assistant", "content": None, "tool_calls": [call]}], [])


def test_a_folder_without_a_tokenizer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefusedError, match="tokenizer"):
        ChatTokenizer(tmp_path)


@given(st.lists(st.integers(0, 99).filter(lambda token: token != EOS)))
def test_streamed_pieces_add_up(tokenizer: ChatTokenizer, ids: list[int]) -> None:
    stream = StreamedText(tokenizer)
    assert "".join(stream.add([token]) for token in ids) == tokenizer.text(ids)


class Bytes:
    """A tokenizer with a token a byte, as byte-level vocabularies have for rare characters."""

    def text(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")


@given(st.text(alphabet="aé€😀\ufffd"), st.integers(0, 3))
def test_a_streamed_character_is_complete_or_the_last(text: str, cut: int) -> None:
    encoded = text.encode()
    encoded = encoded[: len(encoded) - cut]
    stream = StreamedText(Bytes())  # type: ignore[arg-type]
    pieces = [stream.add([byte], last=place == len(encoded) - 1) for place, byte in enumerate(encoded)]
    assert "".join(pieces) == encoded.decode(errors="replace")
