"""Generate docs/settings.md from the declarations of the settings; `stepstream schemas generate` writes it. Pure."""

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from stepstream.config.base import Section
from stepstream.config.loader import CONFIG_VARIABLE, text_of, variable
from stepstream.config.settings import Settings

_HEADER = f"""# Settings

Generated from the declarations in `core/stepstream/config` by `stepstream schemas generate`; do not edit.

Each process reads its settings once, when it starts. An environment variable wins over the TOML file that
`{CONFIG_VARIABLE}` names, which wins over the default. A name without a dot and a slash is a profile of the package:
`demo`, `demo-control`, `demo-model` or `trail`. `stepstream config` shows each effective value and its origin.
An unknown name in the file, or a variable that is nearly a setting's name, stops the process with exit code 2.

In a TOML file a setting is a key of its section's table: `bootstrap = "kafka:9092"` below `[kafka]`. In the environment
lists are separated by commas, lists of tables are JSON, and an empty variable counts as unset unless the setting is a
text or a list. `DATA` is `paths.data`."""

_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path", SecretStr: "secret"}
_BOUNDS = {"gt": "> ", "ge": "≥ ", "lt": "< ", "le": "≤ "}


def settings_page() -> str:
    """Return the text of docs/settings.md: a table for each section, in declared order."""
    lines = [_HEADER]
    for name, section in _sections():
        lines += ["", f"## {name}", "", _first_paragraph(section), ""]
        lines += ["| setting | environment variable | type | unit | default | meaning |", "|---|---|---|---|---|---|"]
        for field, info in section.model_fields.items():
            cells = [f"`{name}.{field}`", f"`{variable(name, field)}`", *_cells(info)]
            lines.append(f"| {' | '.join(cells)} |")
        for field, entry in _tables_in(section):
            lines += ["", f"### Entries of {name}.{field}", "", _first_paragraph(entry), ""]
            lines += ["| key | type | unit | default | meaning |", "|---|---|---|---|---|"]
            lines += [f"| `{key}` | {' | '.join(_cells(info))} |" for key, info in entry.model_fields.items()]
    return "\n".join(lines) + "\n"


def _sections() -> Iterator[tuple[str, type[Section]]]:
    for name, info in Settings.model_fields.items():
        section = info.annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        yield name, section


def _tables_in(section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """Yield the settings that are lists of tables, with the section that declares an entry."""
    for field, info in section.model_fields.items():
        for item in get_args(info.annotation):
            if isinstance(item, type) and issubclass(item, Section):
                yield field, item


def _first_paragraph(section: type[Section]) -> str:
    return " ".join((section.__doc__ or "").split("\n\n")[0].split())


def _cells(info: FieldInfo) -> list[str]:
    extra = info.json_schema_extra
    unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
    cells = [_type(info.annotation) + _range(info), unit or "–", _default(info), info.description or ""]
    return [cell.replace("|", "\\|") for cell in cells]


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"table of {_type(arguments[1])}"
    if origin in (Union, types.UnionType):  # with None
        return next(_type(argument) for argument in arguments if argument is not type(None))
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "tables"
    return _TYPES[annotation]


def _range(info: FieldInfo) -> str:
    bounds = []
    for constraint in info.metadata:
        for attribute, sign in _BOUNDS.items():
            bound = getattr(constraint, attribute, None)
            if bound is not None:
                bounds.append(f"{sign}{bound:g}" if isinstance(bound, float) else f"{sign}{bound}")
    return f" {', '.join(dict.fromkeys(bounds))}" if bounds else ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    text = text_of(info.default)
    if isinstance(info.default, bool):
        text = text.lower()
    return f"`{text}`" if text else "–"
