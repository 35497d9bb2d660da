"""Reads the settings: environment over TOML file over defaults, and remembers where each value came from."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import orjson
from pydantic import SecretStr, ValidationError

from stepstream.config import Section, Settings

PREFIX = "STEPSTREAM_"
CONFIG_VARIABLE = "STEPSTREAM_CONFIG"
MASK = "********"
# How alike a variable and a setting must be, of 1, for the variable to be a typing error. Below are those that
# Kubernetes makes for a service named stepstream-gateway (0.75), and our own that are no settings (0.76).
_TYPING_ERROR = 0.8
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+:[^/\s@]*(?=@)")


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


def masked(text: str) -> str:
    """The text without the credentials that addresses in it may carry: `https://********@host`."""
    return _CREDENTIALS.sub(MASK, text)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none; they have no effect."""
    known = {variable(section, field) for section, field, _ in _declared()} | {CONFIG_VARIABLE}
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in known)


def load(environment: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """Reads the effective settings.

    Args:
        environment: variables to read; default: the process's.
        file: TOML file; default: the one that `STEPSTREAM_CONFIG` names, else none.

    Raises:
        SettingsError: a file that is missing or malformed, an unknown name in it, a variable that is nearly the name
            of a setting, or a value of the wrong kind.
    """
    return load_with_origins(environment, file)[0]


def load_with_origins(
    environment: Mapping[str, str] | None = None, file: Path | None = None
) -> tuple[Settings, dict[tuple[str, str], str]]:
    """As `load`, with the origin of every setting that is not a default, by (section, field).

    An empty variable counts as not set, unless its setting is a text or a list.
    """
    environment = os.environ if environment is None else environment
    _refuse_typing_errors(environment)
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
        text = environment.get(name)
        if text or (text == "" and _may_be_empty(annotation)):
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
    except OSError as error:
        raise SettingsError(f"settings file {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {file} is not TOML: {error}") from None


def _refuse_typing_errors(environment: Mapping[str, str]) -> None:
    """What is meant as a setting must not pass as its default, least of all a secret."""
    known = [variable(section, field).removeprefix(PREFIX) for section, field, _ in _declared()]
    for name in unknown_variables(environment):
        if meant := _nearest(name.removeprefix(PREFIX), known, _TYPING_ERROR):
            raise SettingsError(f"{name} is no setting: did you mean {PREFIX}{meant}?")


def _nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    return next(iter(difflib.get_close_matches(name, list(known), 1, cutoff)), "")


def _may_be_empty(annotation: Any) -> bool:
    return annotation in (str, SecretStr) or get_origin(annotation) is list


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
        return value.get_secret_value() if secrets else MASK if value.get_secret_value() else ""
    if isinstance(value, list) and value and isinstance(value[0], Section):
        text = orjson.dumps([_table(table, secrets=secrets) for table in value]).decode()
    else:
        text = ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
    return text if secrets else masked(text)


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
        place = list(fault["loc"])
        section, field = (*map(str, place), "", "")[:2]
        origin = origins.get((section, field), "")
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = _no_such(name, section, nested=len(place) > 2)
        lines.append(f"{name}: {message}" + (f" (from {origin})" if origin else ""))
    return "; ".join(lines)


def _no_such(name: str, section: str, *, nested: bool) -> str:
    """What is said of a name in the file that no setting has."""
    if section not in Settings.model_fields:
        what, known = "section", list(Settings.model_fields)
    else:
        what, known = "setting", [f"{section}.{field}" for section, field, _ in _declared()]
    meant = "" if nested else _nearest(name, known)
    return f"there is no such {what}" + (f": did you mean {meant}?" if meant else "")
