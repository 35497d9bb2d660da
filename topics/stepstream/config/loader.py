"""Reads the settings: environment over TOML file over defaults, and remembers where each value came from."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import orjson
from pydantic import SecretStr, ValidationError

from stepstream.config.sections import Section, Settings

PREFIX = "STEPSTREAM_"
CONFIG_VARIABLE = "STEPSTREAM_CONFIG"


class SettingsError(Exception):
    """A setting that is unknown or cannot be used; the message names it and where it came from."""


@dataclass(frozen=True)
class Value:
    """One effective setting, as `stepstream config` shows it."""

    name: str
    value: str
    origin: str
    description: str


def variable(section: str, field: str) -> str:
    """The environment variable of a setting: `kafka`, `bootstrap` -> `STEPSTREAM_KAFKA_BOOTSTRAP`."""
    return f"{PREFIX}{section}_{field}".upper()


def load(environment: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """Reads the effective settings.

    Args:
        environment: variables to read; default: the process's.
        file: TOML file; default: the one that `STEPSTREAM_CONFIG` names, else none.

    Raises:
        SettingsError: a file that is missing or malformed, an unknown name, or a value of the wrong kind.
    """
    return load_with_origins(environment, file)[0]


def load_with_origins(
    environment: Mapping[str, str] | None = None, file: Path | None = None
) -> tuple[Settings, dict[tuple[str, str], str]]:
    """As `load`, with the origin of every setting that is not a default, by (section, field)."""
    environment = os.environ if environment is None else environment
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    values: dict[str, dict[str, Any]] = {}
    origins: dict[tuple[str, str], str] = {}
    if file is not None:
        for section, fields in _read_toml(file).items():
            if not isinstance(fields, dict):
                raise SettingsError(f"{file}: '{section}' must be a table of settings")
            values[section] = dict(fields)
            origins |= {(section, field): str(file) for field in fields}
    for section, field, annotation in _declared():
        name = variable(section, field)
        if name in environment:
            text = environment[name]
            values.setdefault(section, {})[field] = _parse(text, annotation, name)
            origins[section, field] = name
    try:
        return Settings.model_validate(values), origins
    except ValidationError as error:
        raise SettingsError(_explain(error, origins)) from None


def effective(settings: Settings, origins: Mapping[tuple[str, str], str]) -> list[Value]:
    """Every setting with its value (secrets masked), its origin and its sentence, in declared order."""
    rows = []
    for section, field, _ in _declared():
        group: Section = getattr(settings, section)
        value = getattr(group, field)
        description = type(group).model_fields[field].description or ""
        rows.append(Value(f"{section}.{field}", _show(value), origins.get((section, field), "default"), description))
    return rows


def environment_of(settings: Settings) -> dict[str, str]:
    """The variables that make another process load exactly these settings (secrets included)."""
    variables = {}
    for section, field, _ in _declared():
        value = getattr(getattr(settings, section), field)
        if value is None:
            continue
        variables[variable(section, field)] = _show(value, secrets=True)
    return variables


def _declared() -> Iterator[tuple[str, str, Any]]:
    for section, info in Settings.model_fields.items():
        kind = info.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        for field, declared in kind.model_fields.items():
            yield section, field, declared.annotation


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"settings file {file} does not exist") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"settings file {file} is not TOML: {error}") from None


def _parse(text: str, annotation: Any, name: str) -> Any:
    """A variable's text as its field takes it: lists of tables are JSON, other lists are separated by commas."""
    if get_origin(annotation) is not list:
        return text
    (item,) = get_args(annotation)
    if not (isinstance(item, type) and issubclass(item, Section)):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return orjson.loads(text or "[]")
    except orjson.JSONDecodeError as error:
        raise SettingsError(f"{name} is not JSON: {error}") from None


def _show(value: object, *, secrets: bool = False) -> str:
    """A value as its environment variable would have it; secrets masked unless asked for."""
    if isinstance(value, SecretStr):
        return value.get_secret_value() if secrets else "********" if value.get_secret_value() else ""
    if isinstance(value, list) and value and isinstance(value[0], Section):
        return orjson.dumps([_table(table, secrets=secrets) for table in value]).decode()
    return ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _table(table: Section, *, secrets: bool) -> dict[str, Any]:
    values = {name: getattr(table, name) for name in type(table).model_fields}
    return {
        name: _show(value, secrets=secrets) if isinstance(value, SecretStr) else value
        for name, value in values.items()
        if value is not None
    }


def _explain(error: ValidationError, origins: Mapping[tuple[str, str], str]) -> str:
    lines = []
    for fault in error.errors(include_url=False, include_input=False):
        section, field = (*map(str, fault["loc"]), "", "")[:2]
        origin = origins.get((section, field), "")
        name, message = ".".join(filter(None, (section, field))), fault["msg"].removeprefix("Value error, ")
        lines.append(f"{name}: {message}" + (f" (from {origin})" if origin else ""))
    return "; ".join(lines)
