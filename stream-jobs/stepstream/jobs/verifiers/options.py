"""Parse the options of verifiers, and define the context that they get."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from stepstream.config import Settings
from stepstream.jobs.verifiers.base import UnverifiableCase, Verifier


class Options(BaseModel):
    """Base of all options: typed, frozen, without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class InvalidOptions(ValueError):
    """Invalid options; the message names them."""


class Calibrations(Protocol):
    """Calibrations of judges."""

    def get(self, key: str) -> Any:
        """Return the newest record by a judge's digest; None: there is none."""
        ...


@dataclass(frozen=True, slots=True)
class VerifierContext:
    """Resources for verifiers, beside their options."""

    settings: Settings
    folder: Path = Path()
    """Folder of the verification file; paths are relative to it."""
    calibrations: Calibrations = field(default_factory=dict[str, Any])
    cancelled: Callable[[], bool] = lambda: False
    """Returns True to stop waiting; then `Cancelled` is raised."""


class VerifierFactory(Protocol):
    """Function that creates a verifier; a plug-in registers one."""

    def __call__(self, options: Mapping[str, Any], context: VerifierContext) -> Verifier:
        """Create a verifier from its options.

        Raises:
            InvalidOptions: they are invalid.
        """
        ...


OptionsT = TypeVar("OptionsT", bound=Options)


def parse_options(kind: type[OptionsT], options: Mapping[str, Any]) -> OptionsT:
    """Check options.

    Raises:
        InvalidOptions: unknown, missing, or of the wrong type.
    """
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise InvalidOptions(faults) from None


def expected_value(value: Any, kind: type, name: str) -> Any:
    """Return a value of the file of expected values.

    Raises:
        UnverifiableCase: it is missing, or of another type.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UnverifiableCase(f"the task's expected values need '{name}' as {kind.__name__}")
    return value
