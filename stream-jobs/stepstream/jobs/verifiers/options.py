"""What every verifier's options have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from stepstream.config import Settings
from stepstream.jobs.verifiers.base import Unusable, Verifier


class Options(BaseModel):
    """Options of a verifier: typed, frozen, and nothing that is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BadOptions(ValueError):
    """Options that make no sense; the message says which."""


class Calibrations(Protocol):
    """Where a judge finds out whether it may count."""

    def get(self, key: str) -> Any:
        """The newest record of a judge's digest, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a verifier may need beside its options."""

    settings: Settings
    folder: Path = Path()
    """That of the verification file; paths are relative to it."""
    calibrations: Calibrations = field(default_factory=dict[str, Any])
    cancelled: Callable[[], bool] = lambda: False
    """Whether to give up waiting; then `Cancelled` is raised."""


class Maker(Protocol):
    """Makes a verifier: what a plug-in registers."""

    def __call__(self, options: Mapping[str, Any], surroundings: Surroundings) -> Verifier:
        """A verifier by its options.

        Raises:
            BadOptions: they make no sense.
        """
        ...


Known = TypeVar("Known", bound=Options)


def read(kind: type[Known], options: Mapping[str, Any]) -> Known:
    """Checks options.

    Raises:
        BadOptions: unknown, missing, or of the wrong type.
    """
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise BadOptions(faults) from None


def expected(value: Any, kind: type, name: str) -> Any:
    """A value from the file of expected values.

    Raises:
        Unusable: it is missing, or of another type.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Unusable(f"the task's expected values need '{name}' as {kind.__name__}")
    return value
