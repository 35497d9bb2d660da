"""Test that vLLM's parsers turn a family's responses into messages, and its template turns them into the same text."""

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chat_families import FAMILIES, MESSAGES, TOOLS
from required_tools import require_package

from stepstream.services.inference.chat_tokenizer import ChatTokenizer

pytestmark = pytest.mark.vllm

TOOL_PARSERS = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "llama3": "llama3_json",
    "smollm2": "hermes",
    "mistral": "mistral",
    "gemma": "pythonic",
}
CITIES = ["Bern", "Zürich", 'a "b" \\ {c}', "x\ny 😀"]
CALL_ID = "abcdefghi"
THOUGHT = "A city.\nIn Europe."


@dataclass
class Reply:
    """One response as a caller gets it, whole or as the sum of its stream."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)


class FamilyParser:
    """The parser that vLLM's server would use for a family, and the family's tokenizer."""

    def __init__(self, name: str, folder: Path, reasoning: str | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what vLLM imports
            from transformers import AutoTokenizer
            from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
            from vllm.parser.parser_manager import ParserManager

        self.tokenizer = ChatTokenizer(FAMILIES[name].build(folder))
        self._known: Any = AutoTokenizer.from_pretrained(folder)
        self._request = ChatCompletionRequest(model="m", messages=MESSAGES, tools=TOOLS)
        parser = ParserManager.get_parser(TOOL_PARSERS[name], reasoning, enable_auto_tools=True)
        assert parser is not None
        self._parser = parser

    def whole(self, text: str) -> Reply:
        """Parse a complete response."""
        parser = self._parser(self._known, self._request.tools)
        reasoning, content, calls = parser.parse(
            text, self._request, enable_auto_tools=True, model_output_token_ids=self.tokenizer.encode(text)
        )
        parsed = [(call.name, json.loads(call.arguments)) for call in calls or ()]
        return Reply(content or "", reasoning or "", parsed)

    def streamed(self, text: str) -> Reply:
        """Parse a response token by token."""
        parser = self._parser(self._known, self._request.tools)
        reply, names, arguments = Reply(), dict[int, str](), dict[int, str]()
        ids, text_before = self.tokenizer.encode(text), ""
        for end in range(1, len(ids) + 1):
            # As the server does: without bytes of a character that is not complete yet.
            text_now = text if end == len(ids) else self.tokenizer.decode(ids[:end]).rstrip("\N{REPLACEMENT CHARACTER}")
            piece, text_before = text_now.removeprefix(text_before), text_now
            delta = parser.parse_delta(piece, [ids[end - 1]], self._request, [], finished=end == len(ids))
            if delta is None:
                continue
            reply.content += delta.content or ""
            reply.reasoning += delta.reasoning or ""
            for call in delta.tool_calls or ():
                names[call.index] = names.get(call.index, "") + (call.function.name or "")
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
        reply.calls = [(name, json.loads(arguments[index])) for index, name in sorted(names.items())]
        return reply


@pytest.fixture
def _vllm() -> None:
    require_package("vllm")


@pytest.mark.usefixtures("_vllm")
@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_calls_come_back_as_they_went(name: str, tmp_path: Path) -> None:
    family, parser = FAMILIES[name], FamilyParser(name, tmp_path)
    for city in CITIES:
        text = family.tool_call % json.dumps(city, ensure_ascii=False)
        expected = Reply(calls=[("weather", {"city": city})])
        assert parser.whole(text) == expected
        assert parser.streamed(text) == expected
        if family.has_tools:
            messages = [*MESSAGES, family.call_message(parser.whole(text).calls[0][1]["city"], CALL_ID)]
            again = parser.tokenizer.template.render(messages, TOOLS, add_generation_prompt=False)
            assert text in again.replace(f', "id": "{CALL_ID}"', ""), "only Mistral's template writes the id"
    plain = "It is clear: 3 < 4."
    assert parser.whole(plain) == parser.streamed(plain) == Reply(content=plain)


@pytest.mark.usefixtures("_vllm")
def test_reasoning_comes_apart_from_calls_and_answers(tmp_path: Path) -> None:
    family, parser = FAMILIES["qwen3"], FamilyParser("qwen3", tmp_path, "qwen3")
    call = family.tool_call % '"Bern"'
    for rest, expected in (
        ("It is clear.", Reply("It is clear.", THOUGHT)),
        (call, Reply("", THOUGHT, [("weather", {"city": "Bern"})])),
    ):
        text = f"<think>\n{THOUGHT}\n</think>\n\n{rest}"
        for reply in (parser.whole(text), parser.streamed(text)):
            reply.reasoning, reply.content = reply.reasoning.strip(), reply.content.strip()
            assert reply == expected
