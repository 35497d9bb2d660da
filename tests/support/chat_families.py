"""Build small tokenizers with chat templates in the shape of real families, as folders in Hugging Face form.

The templates in `tests/data/chat_templates/` are our own; each keeps what matters of its family: the turn tokens, where
tools and calls are written, dates, reasoning blocks, checks of roles and ids. The tokenizers are trained on these
templates, so that characters merge across the borders of words, tags and JSON as in a real vocabulary.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEMPLATES = Path(__file__).parents[1] / "data" / "chat_templates"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Use the tools. Say 'done' at the end."},
    {"role": "user", "content": "What is the weather in Zürich, and is it <false>?"},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Look up a city & its <state>.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in ("weather", "population")
]


@dataclass(frozen=True, slots=True)
class Family:
    """One family of chat models."""

    name: str
    special: dict[str, str]
    """Named special tokens; `eos_token` ends a turn."""
    turns: tuple[str, ...]
    """Further special tokens of the template."""
    tool_call: str
    """How the model writes a call; `%s` is the city, as JSON text."""
    sentencepiece: bool = False
    """True: byte fallback and spaces as a character, without pre-tokenization; False: byte-level."""
    has_tools: bool = True

    def build(self, folder: Path) -> Path:
        """Save tokenizer and template to `folder`; keep the rest of a config.json that is there."""
        folder.mkdir(parents=True, exist_ok=True)
        inner = _sentencepiece(self._tokens) if self.sentencepiece else _byte_level(self._tokens)
        inner.save(str(folder / "tokenizer.json"))
        config = self.special | {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "chat_template.jinja").write_text((TEMPLATES / f"{self.name}.jinja").read_text())
        end = inner.token_to_id(self.special["eos_token"])
        model = folder / "config.json"
        known = json.loads(model.read_bytes()) if model.exists() else {}
        model.write_text(json.dumps(known | {"eos_token_id": end}))
        return folder

    @property
    def _tokens(self) -> list[str]:
        return list(dict.fromkeys([*self.special.values(), *self.turns]))

    def call_message(self, city: str, call_id: str = "abcdefghi") -> dict[str, Any]:
        """Return the message of a parsed call."""
        function = {"name": "weather", "arguments": {"city": city}}
        call = {"id": call_id, "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


_CHATML = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": %s}}\n</tool_call>'
_MISTRAL_BLOCKS = ("INST", "TOOL_RESULTS", "AVAILABLE_TOOLS", "SYSTEM_PROMPT")
FAMILIES = {
    family.name: family
    for family in (
        Family("qwen2_5", _CHATML, ("<|im_start|>", "<tool_call>", "</tool_call>"), _HERMES),
        Family("qwen3", _CHATML, ("<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"), _HERMES),
        Family(
            "llama3",
            {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
            ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|end_of_text|>", "<|python_tag|>"),
            '{"name": "weather", "parameters": {"city": %s}}',
        ),
        Family(
            "smollm2",
            {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"},
            (),
            _HERMES,
            has_tools=False,
        ),
        Family(
            "mistral",
            {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
            ("[TOOL_CALLS]", *(f"[{close}{name}]" for name in _MISTRAL_BLOCKS for close in ("", "/"))),
            '[TOOL_CALLS][{"name": "weather", "arguments": {"city": %s}}]',
            sentencepiece=True,
        ),
        Family(
            "gemma",
            {"bos_token": "<bos>", "eos_token": "<end_of_turn>", "unk_token": "<unk>", "pad_token": "<pad>"},
            ("<start_of_turn>",),
            "[weather(city=%s)]",
            sentencepiece=True,
        ),
    )
}


def _corpus() -> list[str]:
    texts = [file.read_text() for file in sorted(TEMPLATES.glob("*.jinja"))]
    return texts + [json.dumps([MESSAGES, TOOLS], indent=1)] * 2 + [family.tool_call for family in FAMILIES.values()]


def _byte_level(special: list[str]) -> Tokenizer:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(_corpus(), trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet))
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return inner


def _sentencepiece(special: list[str]) -> Tokenizer:
    inner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    words = [line.replace(" ", "▁") for text in _corpus() for line in text.splitlines(keepends=True)]
    data = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    inner.train_from_iterator(words, trainers.BpeTrainer(vocab_size=1100, special_tokens=data, max_token_length=12))
    serialized = json.loads(inner.to_str())
    serialized["added_tokens"] = [entry for entry in serialized["added_tokens"] if entry["content"] == "<unk>"]
    inner = Tokenizer.from_str(json.dumps(serialized))
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return inner
