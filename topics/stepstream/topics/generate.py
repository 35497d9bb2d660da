"""Writes `events.py` and `docs/protocol.md` from the schemas, so that there is only one truth.

`stepstream schemas generate` runs it; a test fails when what is committed is not what it would write.
"""

import keyword
from collections.abc import Iterator
from typing import Any

from stepstream.schemas import names
from stepstream.schemas.loader import source
from stepstream.topics.catalogue import TOPICS, Topic

PYTHON = {
    "boolean": "bool",
    "int": "int",
    "long": "int",
    "float": "float",
    "double": "float",
    "string": "str",
    "bytes": "bytes",
    "null": "None",
}

HEADER = '''"""The events as Python types: generated from the Avro schemas by `stepstream schemas generate`; do not edit.

A record is a plain dict, as the Avro codec reads and writes it, so that no event is copied on its way; the types
below make it checked. The `new_…` functions fill in the schemas' defaults.
"""

from typing import Literal, TypedDict
'''


def python_module() -> str:
    """The text of `stepstream/topics/events.py`."""
    parts = [HEADER]
    for name in _in_order_of_use():
        definition = source(name)
        parts.append(_enum(definition) if definition["type"] == "enum" else _record(definition))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def protocol_page() -> str:
    """The text of `docs/protocol.md`: topics, then every type with its fields."""
    lines = [
        "# Protocol reference",
        "",
        "Generated from the Avro schemas and the topic catalogue by `stepstream schemas generate`; do not edit.",
        "",
        "Values are Avro in the Confluent wire format (a zero byte, the schema's id as four big-endian bytes, the",
        "Avro body); the subject of a topic's schema is `TOPIC-value`; subjects are `FULL_TRANSITIVE`. Keys are UTF-8",
        "text. Every record carries CloudEvents headers (`ce_id`, `ce_type`, `ce_source`, `ce_specversion`, `ce_time`),",
        "and `traceparent` where there is a trace.",
        "",
        "## Topics",
        "",
        "| topic | key | value | partitions | kept | written by | read by | what it holds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_topic_row(topic) for topic in TOPICS.values()]
    for name in names():
        lines += ["", *_section(source(name))]
    return "\n".join(lines) + "\n"


def _topic_row(topic: Topic) -> str:
    schema = f"[{topic.schema}](#{topic.schema.lower()})"
    cells = [f"`{topic.name}`", topic.key, schema, str(topic.partitions), topic.kept]
    cells += [", ".join(topic.writers), ", ".join(topic.readers), topic.doc]
    return f"| {' | '.join(cells)} |"


def _in_order_of_use() -> list[str]:
    """Types before those that refer to them."""
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name in ordered:
            return
        for reference in _references(source(name)):
            visit(reference)
        ordered.append(name)

    for name in names():
        visit(name)
    return ordered


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        if node not in PYTHON:
            yield node
    elif isinstance(node, list):
        for branch in node:
            yield from _references(branch)
    elif node["type"] == "record":
        for field in node["fields"]:
            yield from _references(field["type"])
    elif node["type"] in ("array", "map"):
        yield from _references(node.get("items", node.get("values")))


def _annotation(node: Any) -> str:
    if isinstance(node, list):
        return " | ".join(_annotation(branch) for branch in sorted(node, key=lambda branch: branch == "null"))
    if isinstance(node, dict):
        if node["type"] == "array":
            return f"list[{_annotation(node['items'])}]"
        return f"dict[str, {_annotation(node['values'])}]"
    return PYTHON.get(node, str(node))


def _enum(definition: dict[str, Any]) -> str:
    symbols = ", ".join(f'"{symbol}"' for symbol in definition["symbols"])
    return f'{definition["name"]} = Literal[{symbols}]\n"""{definition["doc"]}"""'


def _record(definition: dict[str, Any]) -> str:
    name, fields = definition["name"], definition["fields"]
    lines = [f"class {name}(TypedDict):", f'    """{definition["doc"]}"""', ""]
    for field in fields:
        assert not keyword.iskeyword(field["name"]), f"{name}.{field['name']} is a Python keyword"
        lines += [f"    {field['name']}: {_annotation(field['type'])}", f'    """{field["doc"]}"""']
    lines += ["", "", f"def new_{_snake(name)}(", "    *,"]
    required = [field for field in fields if "default" not in field]
    optional = [field for field in fields if "default" in field]
    lines += [f"    {field['name']}: {_annotation(field['type'])}," for field in required]
    for field in optional:
        annotation, default = _annotation(field["type"]), field["default"]
        if default in ([], {}):
            annotation, default = f"{annotation} | None", None
        lines.append(f"    {field['name']}: {annotation} = {_literal(default)},")
    lines += [f") -> {name}:", f'    """A {name} with the schema\'s defaults."""', "    return {"]
    for field in fields:
        given = field["name"]
        if "default" in field and field["default"] in ([], {}):
            given = f"{given} if {given} is not None else {field['default']}"
        lines.append(f'        "{field["name"]}": {given},')
    return "\n".join([*lines, "    }"])


def _literal(default: Any) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _snake(name: str) -> str:
    return "".join(("_" if i and c.isupper() else "") + c.lower() for i, c in enumerate(name))


def _section(definition: dict[str, Any]) -> list[str]:
    lines = [f"## {definition['name']}", "", definition["doc"], ""]
    if definition["type"] == "enum":
        symbols = ", ".join(f"`{symbol}`" for symbol in definition["symbols"])
        return [*lines, f"One of {symbols}; unknown symbols read as `{definition['default']}`."]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in definition["fields"]:
        default = f"`{_json(field['default'])}`" if "default" in field else "required"
        lines.append(f"| `{field['name']}` | {_avro_type(field['type'])} | {default} | {field['doc']} |")
    return lines


def _json(default: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}.get(default, default)
        if not isinstance(default, list | dict)
        else str(default)
    )


def _avro_type(node: Any) -> str:
    if isinstance(node, list):
        return " or ".join(_avro_type(branch) for branch in node)
    if isinstance(node, dict):
        inner = _avro_type(node.get("items", node.get("values")))
        return f"{node['type']} of {inner}"
    return node if node in PYTHON else f"[{node}](#{node.lower()})"
