"""OTLP's trace request as it is read here: the same bytes on the wire, other types around them.

OTLP has attributes as a list of names and values, each value a message. On the wire a list of pairs is a map, and a
message is bytes. Declared so, the attributes of a span are one dictionary of bytes, made without a look at what nobody
asks for; `values` reads what somebody does. Fields that are not declared are kept and written again.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "stepstream.otlp"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "fixed64": _FIELD.TYPE_FIXED64,
}
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "TraceRequest": {"resource_spans": (1, "*ResourceSpans")},
    "ResourceSpans": {"resource": (1, "Resource"), "scope_spans": (2, "*ScopeSpans")},
    "Resource": {"attributes": (1, "attributes")},
    "ScopeSpans": {"scope": (1, "Scope"), "spans": (2, "*Span")},
    "Scope": {"name": (1, "string")},
    "Span": {
        "trace_id": (1, "bytes"),
        "span_id": (2, "bytes"),
        "parent_span_id": (4, "bytes"),
        "name": (5, "string"),
        "start_time_unix_nano": (7, "fixed64"),
        "end_time_unix_nano": (8, "fixed64"),
        "attributes": (9, "attributes"),
        "events": (11, "*Event"),
        "status": (15, "bytes"),
    },
    "Event": {"time_unix_nano": (1, "fixed64"), "name": (2, "string"), "attributes": (3, "attributes")},
}
"""Fields by message, with number and type; `*`: several."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = made.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number)
            repeated = kind == "attributes" or kind.startswith("*")
            field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
                continue
            field.type = _FIELD.TYPE_MESSAGE
            if kind == "attributes":
                field.type_name = f".{_PACKAGE}.{name}.AttributesEntry"
                entry = message.nested_type.add(name="AttributesEntry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
                entry.field.add(name="value", number=2, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL)
            else:
                field.type_name = f".{_PACKAGE}.{kind.removeprefix('*')}"
    return made


def _request() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.TraceRequest"))


TraceRequest: Any = _request()
"""The class of requests; `values.attributes` reads its maps."""
