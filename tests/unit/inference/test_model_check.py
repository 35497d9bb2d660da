"""Test the checks of whole models, and the command that prints them."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_families import FAMILIES
from click.testing import CliRunner
from required_tools import require_package
from tiny_families import tiny_of

from stepstream.cli.main import cli
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.model_check import check_model
from stepstream.services.inference.tool_parsers import TOOL_PARSERS


def model(folder: Path, architecture: str, family: str) -> Path:
    tiny_of(architecture, folder, vocabulary=1300)
    (folder / "generation_config.json").unlink()
    return FAMILIES[family].build(folder)


def levels(folder: Path) -> dict[str, str]:
    return {finding.check: finding.level for finding in check_model(folder, parsers=False)}


def set_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | fields))


def test_a_model_that_works_has_no_fault(tmp_path: Path) -> None:
    found = check_model(model(tmp_path, "qwen2", "qwen2_5"), parsers=False)
    assert "fault" not in {finding.level for finding in found}
    texts = {finding.check: finding.text for finding in found}
    assert "LlamaForCausalLM only" in texts["torch engine"]
    assert "one file" in texts["weights"]
    assert "F32" in texts["weights"]
    assert "GiB in full" in texts["memory"]
    assert "adapters of rank 16" in texts["memory"]


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "learner"),
        ({"auto_map": {"AutoModelForCausalLM": "code.Model"}}, "learner"),
        ({"model_type": "vit"}, "learner"),
        ({"vocab_size": 500}, "vocabulary"),
    ],
)
def test_a_model_that_cannot_work_has_a_fault(fields: dict[str, Any], check: str, tmp_path: Path) -> None:
    folder = model(tmp_path, "llama", "llama3")
    assert levels(folder)[check] == "ok"
    set_config(folder, **fields)
    assert levels(folder)[check] == "fault"


@pytest.mark.parametrize(
    ("file", "content", "check"),
    [
        ("config.json", "{", "learner"),
        ("config.json", "[]", "learner"),
        ("config.json", '{"model_type": 5}', "learner"),
        ("generation_config.json", "{", "template"),
        ("generation_config.json", "[]", "template"),
        ("tokenizer_config.json", "[]", "template"),
        ("tokenizer.json", "", "template"),
        ("model.safetensors.index.json", "{}", "weights"),
    ],
)
def test_a_malformed_or_missing_file_is_a_fault_and_no_error(
    file: str, content: str, check: str, tmp_path: Path
) -> None:
    folder = model(tmp_path, "llama", "llama3")
    (folder / file).write_text(content)
    assert levels(folder)[check] == "fault"


def test_attention_caps_and_missing_weights_are_named(tmp_path: Path) -> None:
    folder = model(tmp_path, "gemma2", "gemma")
    assert levels(folder)["learner"] == "note"
    (folder / "model.safetensors").unlink()
    assert levels(folder)["weights"] == "fault"


def test_the_command_exits_with_1_for_a_fault(tmp_path: Path) -> None:
    folder = model(tmp_path, "llama", "llama3")
    good = CliRunner().invoke(cli, ["models", "check", str(folder), "--no-parsers", "--json"])
    assert (good.exit_code, {one["level"] for one in json.loads(good.stdout)}) == (0, {"ok", "note"})
    (folder / "tokenizer.json").unlink()
    bad = CliRunner().invoke(cli, ["models", "check", str(folder), "--no-parsers"])
    assert bad.exit_code == 1
    assert "fault  template" in bad.stdout


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, while vLLM is imported
@pytest.mark.parametrize(
    ("family", "parser"),
    [
        ("qwen2_5", "hermes"),
        ("qwen3", "hermes"),
        ("llama3", "llama3_json"),
        ("mistral", "mistral"),
        ("gemma", "pythonic"),
    ],
)
def test_a_parser_of_vllm_reads_what_the_template_writes(family: str, parser: str, tmp_path: Path) -> None:
    require_package("vllm")
    from stepstream.services.inference.model_check import check_parsers

    finding = check_parsers(FAMILIES[family].build(tmp_path), ChatTokenizer(tmp_path))
    assert finding.level == "ok"
    assert f"calls: {parser} (vLLM)" in finding.text
    assert not any(f"{own} (torch engine)" in finding.text for own in TOOL_PARSERS)
