"""`json_schema`: what was observed is JSON that fits a schema (drafts 4 to 2020-12)."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal

import orjson
from jsonschema import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from stepstream.jobs.verifiers.base import Case, Source, Unusable, Verdict
from stepstream.jobs.verifiers.options import BadOptions, Options, Surroundings, expected, read
from stepstream.jobs.verifiers.regex import BadPattern, compiled

_MOST_CHARACTERS = 200_000


class JsonSchemaOptions(Options):
    """Options of `json_schema`."""

    file: str = ""
    """Schema for every task, beside the verification file; empty: each task has one, as `schema`."""
    formats: bool = False
    """Whether `format` is checked, as far as it is known."""
    pays: Literal["all", "share"] = "all"
    """1 for a fitting document alone, or also a share: 1 / (1 + number of faults)."""


class JsonSchema:
    """Checks documents. References outside the schema are not followed: nothing is fetched."""

    source: Source = "verifier"
    reads_trajectory = False

    def __init__(self, options: JsonSchemaOptions, schema: Any = None) -> None:
        """`schema`: for every task; None: each has its own. Raises BadOptions where it is none."""
        self._options = options
        try:
            self._validator = None if schema is None else validator(schema, formats=options.formats)
        except SchemaError as error:
            raise BadOptions(f"the schema is not one: {error.message}") from None

    def verify(self, case: Case) -> Sequence[Verdict]:
        """1 where it fits; else 0, or a share."""
        checks = self._validator or self._of_task(case)
        try:
            document = orjson.loads(case.observed[:_MOST_CHARACTERS])
        except orjson.JSONDecodeError:
            return [Verdict(0.0, "not_json")]
        try:
            faults = list(checks.iter_errors(document))
        except Unresolvable:
            raise Unusable("the schema refers to what is not in it") from None
        except RecursionError:
            return [Verdict(0.0, "too_deep")]
        if not faults:
            return [Verdict(1.0, "fits")]
        where = sorted({f"{'/'.join(map(str, fault.schema_path))}" for fault in faults})
        paid = 1 / (1 + len(faults)) if self._options.pays == "share" else 0.0
        return [Verdict(paid, "misfit", f"{len(faults)} faults, against {', '.join(where[:3])}")]

    def _of_task(self, case: Case) -> Validator:
        try:
            return validator(expected(case.expected.get("schema"), dict, "schema"), formats=self._options.formats)
        except SchemaError:
            raise Unusable("the task's schema is not one") from None


def validator(schema: Any, *, formats: bool) -> Validator:
    """What checks by a schema.

    Raises:
        SchemaError: it is no schema.
    """
    kind = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    if _mentions(schema, "patternProperties") and _mentions(schema, "unevaluatedProperties"):
        raise SchemaError("unevaluatedProperties beside patternProperties: use additionalProperties")
    kind = extend(kind, _BOUNDED)
    checker = kind.FORMAT_CHECKER if formats else None
    checks: Validator = kind(schema, format_checker=checker, registry=Registry())
    return checks


def _pattern(_: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The keyword `pattern`, by RE2."""
    if isinstance(instance, str) and not _searched(pattern, instance):
        yield ValidationError("does not match the pattern")


def _pattern_properties(checks: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The keyword `patternProperties`, by RE2."""
    if isinstance(instance, dict):
        for pattern, below in patterns.items():
            for name, value in instance.items():
                if _searched(pattern, name):
                    yield from checks.descend(value, below, path=name, schema_path=pattern)


def _additional_properties(checks: Any, below: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The keyword `additionalProperties`; what is additional is found by RE2."""
    if not isinstance(instance, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    more = [name for name in instance if name not in named and not any(_searched(p, name) for p in patterns)]
    if below is False and more:
        yield ValidationError("has more properties")
    elif below is not False:
        for name in more:
            yield from checks.descend(instance[name], below, path=name)


def _unique_items(_: Validator, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The keyword `uniqueItems`, in linear time."""
    if wanted and isinstance(instance, list) and len({_key(item) for item in instance}) < len(instance):
        yield ValidationError("has an item twice")


_BOUNDED = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
"""Keywords with which a document could take for ever otherwise: patterns, and comparing every item with every other."""


def _key(value: Any) -> Hashable:
    """Equal for values that are equal in JSON, where true is not 1 and 1.0 is."""
    if isinstance(value, dict):
        return "{", frozenset((name, _key(held)) for name, held in value.items())
    if isinstance(value, list):
        return "[", *map(_key, value)
    return (value,) if isinstance(value, bool) else value


def _mentions(schema: Any, keyword: str) -> bool:
    """Whether a keyword stands anywhere in a schema."""
    if isinstance(schema, dict):
        return keyword in schema or any(_mentions(below, keyword) for below in schema.values())
    return isinstance(schema, list) and any(_mentions(below, keyword) for below in schema)


def _searched(pattern: str, text: str) -> bool:
    try:
        return compiled(pattern).search(text) is not None
    except BadPattern as error:
        raise Unusable(f"the schema's pattern is not one of RE2's: {error}") from None


def make(options: Mapping[str, Any], surroundings: Surroundings) -> JsonSchema:
    """From options; reads the schema's file."""
    chosen = read(JsonSchemaOptions, options)
    if not chosen.file:
        return JsonSchema(chosen)
    file = surroundings.folder / chosen.file
    try:
        return JsonSchema(chosen, orjson.loads(file.read_bytes()))
    except OSError as error:
        raise BadOptions(f"file: {chosen.file} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise BadOptions(f"file: {chosen.file} is not JSON: {error}") from None
