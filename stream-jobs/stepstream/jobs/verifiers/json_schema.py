"""The verifier `json_schema`: the observed text is JSON that fits a schema (drafts 4 to 2020-12)."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal

import orjson
from jsonschema import FormatChecker, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from stepstream.jobs.redaction.tenant_patterns import InvalidPattern, compile_pattern
from stepstream.jobs.verifiers.base import Case, Source, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.options import InvalidOptions, Options, VerifierContext, expected_value, parse_options

_MAX_CHARACTERS = 200_000


class JsonSchemaOptions(Options):
    """Options of `json_schema`."""

    file: str = ""
    """Schema for every task, beside the verification file; empty: each task has one, as `schema`."""
    formats: bool = False
    """True if known values of `format` are checked."""
    pays: Literal["all", "share"] = "all"
    """`all`: 1 for a fitting document, else 0; `share`: 1 / (1 + number of faults)."""


class JsonSchema:
    """Checks documents. It does not follow references outside the schema: nothing is fetched."""

    source: Source = "verifier"
    reads_trajectory = False

    def __init__(self, options: JsonSchemaOptions, schema: Any = None) -> None:
        """Create it; `schema` is for every task, None: each has its own.

        Raises:
            InvalidOptions: the schema is invalid.
        """
        self._options = options
        try:
            self._validator = None if schema is None else validator(schema, formats=options.formats)
        except SchemaError as error:
            raise InvalidOptions(f"invalid schema: {error.message}") from None

    def verify(self, case: Case) -> Sequence[Verdict]:
        """Return 1 if the document fits; else 0, or a share."""
        checks = self._validator or self._of_task(case)
        try:
            document = orjson.loads(case.observed[:_MAX_CHARACTERS])
        except orjson.JSONDecodeError:
            return [Verdict(0.0, "not_json")]
        try:
            faults = list(checks.iter_errors(document))
        except Unresolvable:
            raise UnverifiableCase("the schema has a reference outside itself") from None
        except RecursionError:
            return [Verdict(0.0, "too_deep")]
        if not faults:
            return [Verdict(1.0, "fits")]
        where = sorted({f"{'/'.join(map(str, fault.schema_path))}" for fault in faults})
        paid = 1 / (1 + len(faults)) if self._options.pays == "share" else 0.0
        return [Verdict(paid, "misfit", f"{len(faults)} faults, against {', '.join(where[:3])}")]

    def _of_task(self, case: Case) -> Validator:
        try:
            return validator(expected_value(case.expected.get("schema"), dict, "schema"), formats=self._options.formats)
        except SchemaError:
            raise UnverifiableCase("the task's schema is invalid") from None


def validator(schema: Any, *, formats: bool) -> Validator:
    """Return the validator of a schema.

    Raises:
        SchemaError: the schema is invalid.
    """
    kind = validator_for(schema, default=Draft202012Validator)
    formatted = _format_checker(kind)
    try:
        kind.check_schema(schema, format_checker=formatted)
    except SchemaError as error:
        if error.validator == "format" and error.validator_value == "regex":
            raise SchemaError(f"RE2 rejects the pattern {error.instance!r}: {error.cause}") from None
        raise
    if _contains_keyword(schema, "patternProperties") and _contains_keyword(schema, "unevaluatedProperties"):
        raise SchemaError("unevaluatedProperties beside patternProperties: use additionalProperties")
    kind = extend(kind, _BOUNDED_KEYWORDS)
    checks: Validator = kind(schema, format_checker=formatted if formats else None, registry=Registry())
    return checks


def _format_checker(kind: type[Validator]) -> FormatChecker:
    """Return the checker of a draft, with RE2 for the format `regex`."""
    checker = FormatChecker(formats=())
    checker.checkers = {**kind.FORMAT_CHECKER.checkers, "regex": (_is_pattern, InvalidPattern)}
    return checker


def _is_pattern(instance: object) -> bool:
    return not isinstance(instance, str) or compile_pattern(instance) is not None


def _pattern(_: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the keyword `pattern`, by RE2."""
    if isinstance(instance, str) and not _search(pattern, instance):
        yield ValidationError("does not match the pattern")


def _pattern_properties(checks: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the keyword `patternProperties`, by RE2."""
    if isinstance(instance, dict):
        for pattern, below in patterns.items():
            for name, value in instance.items():
                if _search(pattern, name):
                    yield from checks.descend(value, below, path=name, schema_path=pattern)


def _additional_properties(checks: Any, below: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the keyword `additionalProperties`; RE2 finds the additional ones."""
    if not isinstance(instance, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    more = [name for name in instance if name not in named and not any(_search(p, name) for p in patterns)]
    if below is False and more:
        yield ValidationError("has more properties")
    elif below is not False:
        for name in more:
            yield from checks.descend(instance[name], below, path=name)


def _unique_items(_: Validator, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the keyword `uniqueItems`, in linear time."""
    if wanted and isinstance(instance, list) and len({_key(item) for item in instance}) < len(instance):
        yield ValidationError("has an item twice")


_BOUNDED_KEYWORDS = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
"""Keywords whose default implementation may take exponential or quadratic time for a document."""


def _key(value: Any) -> Hashable:
    """Return a key that is equal for equal JSON values, where true is not 1 and 1.0 is."""
    if isinstance(value, dict):
        return "{", frozenset((name, _key(member)) for name, member in value.items())
    if isinstance(value, list):
        return "[", *map(_key, value)
    return (value,) if isinstance(value, bool) else value


def _contains_keyword(schema: Any, keyword: str) -> bool:
    """Return True if a keyword is anywhere in a schema."""
    if isinstance(schema, dict):
        return keyword in schema or any(_contains_keyword(below, keyword) for below in schema.values())
    return isinstance(schema, list) and any(_contains_keyword(below, keyword) for below in schema)


def _search(pattern: str, text: str) -> bool:
    try:
        return compile_pattern(pattern).search(text) is not None
    except InvalidPattern as error:
        raise UnverifiableCase(f"the schema has a pattern that RE2 rejects: {error}") from None


def make(options: Mapping[str, Any], context: VerifierContext) -> JsonSchema:
    """Create the verifier from its options; reads the schema's file."""
    parsed = parse_options(JsonSchemaOptions, options)
    if not parsed.file:
        return JsonSchema(parsed)
    file = context.folder / parsed.file
    try:
        return JsonSchema(parsed, orjson.loads(file.read_bytes()))
    except OSError as error:
        raise InvalidOptions(f"file: {parsed.file} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise InvalidOptions(f"file: {parsed.file} is not JSON: {error}") from None
