"""A response that somebody wrote becomes the tokens that a worker would have sampled and read back as it."""

import json
import shutil
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import tiny_model

from stepstream.learner.speech import Speech, message_of
from stepstream.services.inference.chat import ChatTokenizer

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
def speech(folder: Path) -> Speech:
    return Speech(folder)


@pytest.fixture(scope="module")
def worker(folder: Path) -> ChatTokenizer:
    return ChatTokenizer(folder)


def templated(folder: Path, target: Path, template: str | None) -> Speech:
    shutil.copytree(folder, target)
    (target / "chat_template.jinja").unlink()
    if template is not None:
        (target / "chat_template.jinja").write_text(template)
    return Speech(target)


def calling(arguments: Any = '{"input": "a"}', **fields: Any) -> str:
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": arguments}}
    return json.dumps({"role": "assistant", "content": None, "tool_calls": [call]} | fields)


@given(st.text(string.ascii_letters + string.digits + " +(){}\"'\n", min_size=1, max_size=20))
def test_behind_a_prompt_it_is_what_the_worker_renders_and_reads_back(
    speech: Speech, worker: ChatTokenizer, text: str
) -> None:
    said = speech(text)
    answered = worker.prompt_ids([USER, {"role": "assistant", "content": text}], [], speaks=False)
    assert worker.prompt_ids([USER], []) + said == answered
    assert worker.text(said) == text
    assert said[-1] == EOS


@pytest.mark.parametrize("arguments", ['{"input": "a"}', {"input": "a"}])
def test_a_tool_call_is_written_as_the_template_does(speech: Speech, worker: ChatTokenizer, arguments: Any) -> None:
    assert speech(calling(arguments)) == speech("get(a)")
    assert worker.text(speech(calling(arguments))) == "get(a)"


def test_a_turn_ends_at_the_first_token_that_ends_it(speech: Speech) -> None:
    assert speech("a<eos>b") == speech("a")


def test_what_belongs_to_the_template_is_not_said(folder: Path, speech: Speech, tmp_path: Path) -> None:
    headed = templated(folder, tmp_path / "headed", HEADED)
    assert headed("four") == speech("four")


def test_without_a_template_it_is_plain_text_and_the_end_of_the_turn(
    folder: Path, speech: Speech, tmp_path: Path
) -> None:
    plain = templated(folder, tmp_path / "plain", None)
    assert plain("four") == speech("four")
    assert plain(calling()) == []


@pytest.mark.parametrize(
    "response",
    [
        "",
        calling("no json"),
        calling([1]),
        calling(tool_calls=[{"id": "c"}]),
        calling(tool_calls=7),
        calling(tool_calls=[], content=""),
        calling(content=[{"type": "text", "text": "a"}]),
    ],
)
def test_what_is_no_message_cannot_be_said(speech: Speech, response: str) -> None:
    assert speech(response) == []


@pytest.mark.parametrize("text", ['{"role": "user"}', "[1]", "{", "7"])
def test_other_json_is_text_like_any(text: str) -> None:
    assert message_of(text) == {"role": "assistant", "content": text}
