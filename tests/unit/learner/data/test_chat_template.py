"""Check that a written response gets the tokens that a worker would have sampled and parsed as it."""

import json
import shutil
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import text_record, tiny_model

from stepstream.learner.data.chat_template import ChatTemplate, parse_response
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.topics.events import Conversation, new_message, new_tool_call

EOS = 2
USER = {"role": "user", "content": "q:a+c"}
HEADED = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- '[' + message.role + ']' + message.content + eos_token + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '[assistant]' -}}{%- endif -%}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("speech") / "m")


@pytest.fixture(scope="module")
def speech(folder: Path) -> ChatTemplate:
    return ChatTemplate(folder)


@pytest.fixture(scope="module")
def worker(folder: Path) -> ChatTokenizer:
    return ChatTokenizer(folder)


def templated(folder: Path, target: Path, template: str | None) -> ChatTemplate:
    shutil.copytree(folder, target)
    (target / "chat_template.jinja").unlink()
    if template is not None:
        (target / "chat_template.jinja").write_text(template)
    return ChatTemplate(target)


def calling(arguments: Any = '{"input": "a"}', **fields: Any) -> str:
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": arguments}}
    return json.dumps({"role": "assistant", "content": None, "tool_calls": [call]} | fields)


@given(st.text(string.ascii_letters + string.digits + " +(){}\"'\n", min_size=1, max_size=20))
def test_a_response_gets_the_worker_s_tokens(speech: ChatTemplate, worker: ChatTokenizer, text: str) -> None:
    tokens = speech(text)
    answered = worker.prompt_ids([USER, {"role": "assistant", "content": text}], [], add_generation_prompt=False)
    assert worker.prompt_ids([USER], []) + tokens == answered
    assert worker.text(tokens) == text
    assert tokens[-1] == EOS


@pytest.mark.parametrize("arguments", ['{"input": "a"}', {"input": "a"}])
def test_a_tool_call_is_rendered_by_the_template(speech: ChatTemplate, worker: ChatTokenizer, arguments: Any) -> None:
    assert speech(calling(arguments)) == speech("get(a)")
    assert worker.text(speech(calling(arguments))) == "get(a)"


def test_a_turn_ends_at_the_first_token_that_ends_it(speech: ChatTemplate) -> None:
    assert speech("a<eos>b") == speech("a")


def test_text_of_the_template_is_not_part_of_the_response(folder: Path, speech: ChatTemplate, tmp_path: Path) -> None:
    headed = templated(folder, tmp_path / "headed", HEADED)
    assert headed("four") == speech("four")


def test_without_a_template_it_is_plain_text_and_the_end_of_the_turn(
    folder: Path, speech: ChatTemplate, tmp_path: Path
) -> None:
    plain = templated(folder, tmp_path / "plain", None)
    assert plain("four") == speech("four")
    assert plain(calling()) == []


@pytest.mark.parametrize(
    "response",
    [
        "",
        calling("no json"),
        calling("[" * 100_000),
        calling([1]),
        calling(tool_calls=[{"id": "c"}]),
        calling(tool_calls=7),
        calling(tool_calls=[], content=""),
        calling(content=[{"type": "text", "text": "a"}]),
    ],
)
def test_a_malformed_message_has_no_tokens(speech: ChatTemplate, response: str) -> None:
    assert speech(response) == []


# --- conversations

FORGETFUL = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' and loop.last -%}{{- message.reasoning_content or '' -}}{%- endif -%}
{{- message.content + (eos_token if message.role == 'assistant' else '\\n') -}}
{%- endfor -%}
"""
"""Leaves out what was thought before the last answer."""
OFFERING = HEADED.replace("bos_token", "bos_token + (tools | length | string if tools else '-')")
words = st.text(string.ascii_letters + string.digits + " +(){}\"'\n", min_size=1, max_size=12)


def talk(*contents: str) -> Conversation:
    return text_record("t", contents, 1.0)["conversations"][0]


@given(st.lists(words, min_size=2, max_size=6))
def test_a_conversation_gets_the_worker_s_tokens_with_the_answers_trained(
    speech: ChatTemplate, worker: ChatTokenizer, contents: list[str]
) -> None:
    conversation = talk(*contents)
    messages: list[dict[str, Any]] = [
        {"role": each["role"], "content": each["content"]} for each in conversation["messages"]
    ]
    [sequence] = speech.conversation_sequences(conversation)
    answered = 2 * (len(contents) // 2)
    assert list(sequence.ids) == worker.prompt_ids(messages[:answered], [], add_generation_prompt=False)
    assert [worker.text(sequence.ids[start:end]) for start, end, _ in sequence.spans] == contents[1::2]
    assert [step for _, _, step in sequence.spans] == list(range(len(contents) // 2))
    assert all(sequence.ids[end - 1] == EOS for _, end, _ in sequence.spans)


def test_template_text_around_answers_is_context(folder: Path, tmp_path: Path) -> None:
    headed = templated(folder, tmp_path / "headed", HEADED)
    [sequence] = headed.conversation_sequences(talk("a", "b", "c", "d"))
    around = ChatTokenizer(tmp_path / "headed")
    assert around.text(sequence.ids) == "<bos>[user]a<eos>\n[assistant]b<eos>\n[user]c<eos>\n[assistant]d"
    assert [around.text(sequence.ids[start:end]) for start, end, _ in sequence.spans] == ["b", "d"]


def test_a_template_that_omits_earlier_text_begins_a_new_sequence(folder: Path, tmp_path: Path) -> None:
    forgetful = templated(folder, tmp_path / "forgetful", FORGETFUL)
    conversation = talk("a", "b", "c", "d")
    conversation["messages"][1]["reasoning"] = "hm"
    first, second = forgetful.conversation_sequences(conversation)
    around = ChatTokenizer(tmp_path / "forgetful")
    assert [around.text(each.ids) for each in (first, second)] == ["<bos>a\nhmb", "<bos>a\nb<eos>c\nd"]
    assert [[step for _, _, step in each.spans] for each in (first, second)] == [[0], [1]]


def test_text_after_an_early_end_of_turn_is_context(speech: ChatTemplate, worker: ChatTokenizer) -> None:
    [sequence] = speech.conversation_sequences(talk("a", "b<eos>c", "d", "e"))
    assert [worker.text(sequence.ids[start:end]) for start, end, _ in sequence.spans] == ["b", "e"]
    assert worker.text(sequence.ids) == "<bos>a\nb<eos>c<eos>d\ne"


def test_offered_tools_are_rendered(folder: Path, tmp_path: Path) -> None:
    offering = templated(folder, tmp_path / "offering", OFFERING)
    for tools, count in (("[{}, {}]", "2"), ("[]", "-"), ("no json", "-"), ("[" * 100_000, "-"), (None, "-")):
        [sequence] = offering.conversation_sequences(talk("a", "b") | {"tool_definitions": tools})
        assert ChatTokenizer(tmp_path / "offering").text(sequence.ids[:2]) == "<bos>" + count


@pytest.mark.parametrize("first", ["assistant", "user"])
def test_messages_that_the_template_rejects_are_left_out(
    folder: Path, speech: ChatTemplate, worker: ChatTokenizer, tmp_path: Path, first: str
) -> None:
    conversation = talk("a", "b", "c", "d")
    conversation["messages"][3]["tool_calls"] = [new_tool_call(call_id="c", name="get", arguments="no object")]
    [sequence] = speech.conversation_sequences(conversation)
    assert worker.text(sequence.ids) == "<bos>a\nb"
    assert templated(folder, tmp_path / "plain", None).conversation_sequences(conversation) == []
    begun = talk("a", "b") | {"messages": [new_message(role=first, content="b")]}
    begun["spans"] = [{"message": 0, "step_index": 0}]
    assert speech.conversation_sequences(begun) == []


@pytest.mark.parametrize("text", ['{"role": "user"}', "[1]", "{", "7", "[" * 100_000], ids=range(5))
def test_json_of_another_form_is_plain_text(text: str) -> None:
    assert parse_response(text) == {"role": "assistant", "content": text}
