"""Test the findings about templates, by family and by fault."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_families import FAMILIES

from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.template_check import check_generation_config, check_template, written_call

OK = {"tools": "ok", "tool cycle": "ok", "next user turn": "ok", "stop ids": "ok", "date": "ok"}


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("qwen2_5", {}),
        ("qwen3", {"next user turn": "note", "reasoning": "note"}),
        ("llama3", {"date": "note"}),
        ("smollm2", {"tools": "fault", "tool cycle": "note"}),
        ("mistral", {"next user turn": "note"}),
        ("gemma", {}),
    ],
)
def test_each_family_has_its_limits(name: str, others: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(FAMILIES[name].build(tmp_path))
    findings = {finding.check: finding.level for finding in check_template(tokenizer)}
    assert findings == OK | others


def test_a_call_is_what_the_template_writes(tmp_path: Path) -> None:
    text = written_call(ChatTokenizer(FAMILIES["llama3"].build(tmp_path)))
    assert text == '{"name": "get_weather", "parameters": {"city": "Bern"}}'


def test_a_model_that_does_not_stop_where_its_turns_end_is_a_fault(tmp_path: Path) -> None:
    FAMILIES["qwen2_5"].build(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|endoftext|>"}))
    end = ChatTokenizer(tmp_path).encode("<|endoftext|>")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": end}))
    [stops] = [finding for finding in check_template(ChatTokenizer(tmp_path)) if finding.check == "stop ids"]
    assert stops.level == "fault"
    assert "'<|im_end|>'" in stops.text
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": ChatTokenizer(tmp_path).encode("<|im_end|>")})
    )
    [stops] = [finding for finding in check_template(ChatTokenizer(tmp_path)) if finding.check == "stop ids"]
    assert stops.level == "ok"


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{{ raise_exception('no') }}", {"tools", "tool cycle", "next user turn", "stop ids"}),
        ("{{ tools }}{{ messages[0].content }}", {"tools"}),
        ("{{ tools }}{% for m in messages %}{{ m.role + m.nothing.more }}{% endfor %}", {"tools", "stop ids"}),
    ],
)
def test_a_template_that_fails_is_a_fault_and_no_error(source: str, fault: set[str], tmp_path: Path) -> None:
    FAMILIES["qwen2_5"].build(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(source)
    found = {finding.check for finding in check_template(ChatTokenizer(tmp_path)) if finding.level == "fault"}
    assert found >= fault


def test_sampling_of_the_generation_config_is_a_note(tmp_path: Path) -> None:
    assert check_generation_config(tmp_path).level == "ok"
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20}))
    finding = check_generation_config(tmp_path)
    assert (finding.level, "temperature 0.6, top_k 20" in finding.text) == ("note", True)
