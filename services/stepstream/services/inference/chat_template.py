"""Render conversations by a checkpoint's chat template, as transformers' `apply_chat_template` does.

Tests compare both on the families of `tests/support/chat_families.py`. Two differences are deliberate:

- `strftime_now` gives the date of `RenderOptions.now`, not the server's clock: a prompt with a date would otherwise
  change at midnight, in the middle of a trajectory, and no longer continue the step before;
- arguments of the template come from the request's `chat_template_kwargs`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NAMED_TEMPLATES = "additional_chat_templates"
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception"})
"""Names that `chat_template_kwargs` must not replace."""


class TemplateError(ValueError):
    """The conversation cannot be rendered by the model's chat template."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Everything besides messages and tools that a prompt depends on."""

    now: datetime | None = None
    """Start of the trajectory, the date that `strftime_now` gives; None: the server's, in UTC."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the template, as `chat_template_kwargs`: `enable_thinking`, `date_string`, ..."""


class ChatTemplate:
    """The templates of one checkpoint folder: one, or several by name (`default`, `tool_use`)."""

    def __init__(self, sources: Mapping[str, str], special: Mapping[str, str]) -> None:
        """Compile templates.

        Args:
            sources: the templates' texts by name; at least one.
            special: the special tokens by name, `bos_token` and others, which templates use.

        Raises:
            jinja2.TemplateError: a template is malformed.
        """
        environment = _environment()
        self.sources = dict(sources)
        self.special = dict(special)
        self._templates = {name: environment.from_string(source) for name, source in sources.items()}

    @classmethod
    def read(cls, folder: Path) -> "ChatTemplate":
        """Read a folder in Hugging Face form: `chat_template.jinja` before the field of tokenizer_config.json.

        Raises:
            OSError: a file cannot be read.
            ValueError: tokenizer_config.json is malformed.
            KeyError: there is no template.
            jinja2.TemplateError: a template is malformed.
        """
        config = json.loads((folder / "tokenizer_config.json").read_bytes())
        sources: dict[str, str] = {}
        field_ = config.get("chat_template")
        if isinstance(field_, list):
            sources = {entry["name"]: entry["template"] for entry in field_}
        elif field_ is not None:
            sources = {"default": field_}
        file = folder / "chat_template.jinja"
        if file.exists():
            sources["default"] = file.read_text(encoding="utf-8")
        for named in sorted((folder / _NAMED_TEMPLATES).glob("*.jinja")):
            sources[named.stem] = named.read_text(encoding="utf-8")
        if not sources:
            raise KeyError("chat_template")
        return cls(sources, _special_tokens(folder, config))

    def source(self, tools: Sequence[Any] = ()) -> str:
        """Return the text of the template that renders a conversation with these tools."""
        return self.sources[self._name(tools)]

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
        options: RenderOptions | None = None,
    ) -> str:
        """Return the conversation's text; `add_generation_prompt`: with the beginning of an assistant's message.

        Raises:
            TemplateError: the template cannot render the conversation.
        """
        options = options or RenderOptions()
        now = options.now or datetime.now(UTC)
        reserved = RESERVED & set(options.arguments)
        if reserved:
            raise TemplateError(f"chat_template_kwargs must not replace {', '.join(sorted(reserved))}")
        variables: dict[str, Any] = {
            **self.special,
            **options.arguments,
            "messages": messages,
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": now.strftime,
        }
        try:
            return self._templates[self._name(tools)].render(variables)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise TemplateError(f"the chat template cannot render these messages: {error}") from error

    def _name(self, tools: Sequence[Any]) -> str:
        if tools and "tool_use" in self.sources:
            return "tool_use"
        if "default" in self.sources or len(self.sources) == 1:
            return "default" if "default" in self.sources else next(iter(self.sources))
        raise TemplateError(f"no template is named 'default': this model has {', '.join(sorted(self.sources))}")


class _Generation(Extension):
    """Accept `{% generation %}`, which marks an assistant's text for supervised training; render its body unchanged."""

    tags = {"generation"}  # noqa: RUF012 — jinja2 declares it as an attribute of the class

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block's body in a scope of its own, as transformers renders it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does: jinja2's own filter escapes HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the named special tokens, and the model's own of `extra_special_tokens` where they have names."""
    entries: dict[str, Any] = {}
    older = folder / "special_tokens_map.json"
    if older.exists():
        entries |= json.loads(older.read_bytes())
    entries |= {name: config[name] for name in _SPECIAL if name in config}
    more = config.get("extra_special_tokens")
    named = more if isinstance(more, dict) else {}
    found = {name: entries.get(name) for name in _SPECIAL} | named
    return {name: token if isinstance(token, str) else str(token["content"]) for name, token in found.items() if token}
