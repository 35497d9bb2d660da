"""Load the settings of a process: environment variables over a TOML file or profile over defaults.

A profile is a TOML file of this package, in `profiles`.
`load_with_origins` also records the origin of each value, for `stepstream config`.
"""

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

from stepstream.config.base import Section
from stepstream.config.settings import Settings

PREFIX = "STEPSTREAM_"
CONFIG_VARIABLE = "STEPSTREAM_CONFIG"
MASK = "********"
_PROFILES = Path(__file__).with_name("profiles")
# Similarity, of 1, above which an unknown variable counts as a misspelled setting. Variables that Kubernetes sets for a
# service named stepstream-gateway reach 0.75, Stepstream's own variables that are no settings 0.76.
_MISSPELLED = 0.8
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+:[^/\s@]*(?=@)")


class SettingsError(Exception):
    """A setting is unknown or invalid. The message names it, its origin and the remedy; the process exits with 2."""


@dataclass(frozen=True)
class EffectiveSetting:
    """One setting as `stepstream config` shows it; secrets are masked."""

    name: str
    value: str
    origin: str
    description: str


def variable(section: str, field: str) -> str:
    """Return the environment variable of a setting: `kafka`, `bootstrap` -> `STEPSTREAM_KAFKA_BOOTSTRAP`."""
    return f"{PREFIX}{section}_{field}".upper()


def masked(text: str) -> str:
    """Return the text with the credentials of addresses replaced: `https://********@host`."""
    return _CREDENTIALS.sub(MASK, text)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the variables with the prefix `STEPSTREAM_` that are no settings; they have no effect."""
    known = {variable(section, field) for section, field, _ in _declared()} | {CONFIG_VARIABLE}
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in known)


def settings_file(name: str) -> Path:
    """Return the file that a value of `STEPSTREAM_CONFIG` names: a profile, if it has neither a dot nor a slash.

    Raises:
        SettingsError: there is no such profile.
    """
    if "." in name or "/" in name:
        return Path(name)
    file = _PROFILES / f"{name}.toml"
    if not file.exists():
        profiles = ", ".join(sorted(other.stem for other in _PROFILES.glob("*.toml")))
        raise SettingsError(
            f"{CONFIG_VARIABLE}: there is no profile '{name}': name a file, as ./{name}, or one of {profiles}"
        )
    return file


def load(environment: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """Load the settings of this process.

    Args:
        environment: variables to read; default: the process's.
        file: TOML file; default: the file or profile that `STEPSTREAM_CONFIG` names, else none.

    Raises:
        SettingsError: the file is missing or malformed or holds an unknown name, a variable is a misspelled setting, or
            a value is invalid.
    """
    return load_with_origins(environment, file)[0]


def load_with_origins(
    environment: Mapping[str, str] | None = None, file: Path | None = None
) -> tuple[Settings, dict[tuple[str, str], str]]:
    """Load as `load`, and return the origin of every setting that is no default, by (section, field).

    An empty variable counts as unset, unless its setting is a text or a list.
    """
    environment = os.environ if environment is None else environment
    _reject_misspelled_variables(environment)
    if file is None and environment.get(CONFIG_VARIABLE):
        file = settings_file(environment[CONFIG_VARIABLE])
    values: dict[str, dict[str, Any]] = {}
    origins: dict[tuple[str, str], str] = {}
    if file is not None:
        for section, fields in _read_toml(file).items():
            if not isinstance(fields, dict):
                raise SettingsError(f"{file}: '{section}' must be a table of settings, as [{section}]")
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


def effective(settings: Settings, origins: Mapping[tuple[str, str], str]) -> list[EffectiveSetting]:
    """Return every setting with its value, origin and description, in declared order."""
    rows = []
    for section, field, _ in _declared():
        group: Section = getattr(settings, section)
        value = getattr(group, field)
        description = type(group).model_fields[field].description or ""
        rows.append(
            EffectiveSetting(
                f"{section}.{field}", text_of(value), origins.get((section, field), "default"), description
            )
        )
    return rows


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the variables with which another process loads the same settings. They contain the secrets."""
    variables = {}
    for section, field, _ in _declared():
        value = getattr(getattr(settings, section), field)
        if value is None:
            continue
        variables[variable(section, field)] = text_of(value, secrets=True)
    return variables


def _declared() -> Iterator[tuple[str, str, Any]]:
    """Yield section, name and type of every setting."""
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


def _reject_misspelled_variables(environment: Mapping[str, str]) -> None:
    """Reject variables that are nearly a setting: a misspelled secret must not leave the default in force."""
    known = [variable(section, field).removeprefix(PREFIX) for section, field, _ in _declared()]
    for name in unknown_variables(environment):
        if nearest := _nearest(name.removeprefix(PREFIX), known, _MISSPELLED):
            raise SettingsError(f"{name} is no setting: did you mean {PREFIX}{nearest}?")


def _nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    return next(iter(difflib.get_close_matches(name, list(known), 1, cutoff)), "")


def _may_be_empty(annotation: Any) -> bool:
    return annotation in (str, SecretStr) or get_origin(annotation) is list


def _parse(text: str, annotation: Any, name: str) -> Any:
    """Return a variable's value as its field accepts it: lists of tables are JSON, other lists separated by commas."""
    if get_origin(annotation) is not list:
        return text
    (item,) = get_args(annotation)
    if not (isinstance(item, type) and issubclass(item, Section)):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return orjson.loads(text or "[]")
    except orjson.JSONDecodeError as error:
        raise SettingsError(f"{name} is not JSON: {error}") from None


def text_of(value: object, *, secrets: bool = False) -> str:
    """Return a value as the text of its environment variable, with masked secrets by default."""
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
        name: text_of(value, secrets=secrets) if isinstance(value, SecretStr) else value
        for name, value in values.items()
        if value is not None
    }


def _explain(error: ValidationError, origins: Mapping[tuple[str, str], str]) -> str:
    """Return each fault with the setting's name and origin."""
    lines = []
    for fault in error.errors(include_url=False, include_input=False):
        path = list(fault["loc"])
        section, field = (*map(str, path), "", "")[:2]
        origin = origins.get((section, field), "")
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = _no_such(name, section, nested=len(path) > 2)
        lines.append(f"{name}: {message}" + (f" (from {origin})" if origin else ""))
    return "; ".join(lines)


def _no_such(name: str, section: str, *, nested: bool) -> str:
    """Return the message about a name in the file that is no setting."""
    if section not in Settings.model_fields:
        kind, known = "section", list(Settings.model_fields)
    else:
        kind, known = "setting", [f"{section}.{field}" for section, field, _ in _declared()]
    nearest = "" if nested else _nearest(name, known)
    return f"there is no such {kind}" + (f": did you mean {nearest}?" if nearest else "")
