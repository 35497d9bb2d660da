"""Test the converted SmolLM2: transformers loads it, it answers, and vLLM's Hermes parser reads what its template
writes."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stepstream.learner.model.pretrained import config_of
from stepstream.services.inference.chat_tokenizer import ChatTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the libraries that read GGUF files

TOOLS = [{"type": "function", "function": {"name": "light", "parameters": {"type": "object", "properties": {}}}}]
CALL: dict[str, Any] = {
    "id": "c",
    "type": "function",
    "function": {"name": "light", "arguments": '{"room": "hall", "percent": 40}'},
}
ROUND: list[dict[str, Any]] = [
    {"role": "system", "content": "You run a house."},
    {"role": "user", "content": "Dim the hall."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "ok"},
]


@pytest.fixture
def folder(smollm2_model: Path) -> Path:
    return smollm2_model


def rendered(folder: Path, messages: list[dict[str, Any]]) -> str:
    tokenizer = ChatTokenizer(folder)
    return tokenizer.text(tokenizer.prompt_ids(messages, TOOLS, add_generation_prompt=False))


def test_transformers_loads_it_and_it_answers(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_token_id


def test_the_learner_accepts_it(folder: Path) -> None:
    assert config_of(folder).model_type == "llama"
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    assert set(index["weight_map"].values()) == {"model.safetensors"}


def test_digits_are_single_tokens(folder: Path) -> None:
    tokenizer = ChatTokenizer(folder)
    ids = tokenizer.prompt_ids([{"role": "user", "content": "12345"}], [])
    assert {"1", "2", "3", "4", "5"} <= {tokenizer.token(each) for each in ids}


def test_the_template_only_appends(folder: Path) -> None:
    texts = [rendered(folder, [*ROUND, *ROUND[1:]][:count]) for count in range(1, 8)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


@pytest.mark.vllm
def test_the_hermes_parser_reads_what_the_template_writes(folder: Path) -> None:
    from transformers import AutoTokenizer
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    before, after = (rendered(folder, ROUND[:count]) for count in (2, 3))
    text = after.removeprefix(before).removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    parser = Hermes2ProToolParser(tokenizer)
    request: Any = SimpleNamespace(tools=TOOLS)
    for answer in (text, text.removesuffix("</tool_call>")):  # with and without a stop at the closing tag
        parsed = parser.extract_tool_calls(answer, request)
        assert [(call.function.name, call.function.arguments) for call in parsed.tool_calls] == [
            ("light", CALL["function"]["arguments"])
        ]
