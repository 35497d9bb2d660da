"""Check compatibility levels with the `avro` package's reader-writer check."""

from collections.abc import Sequence
from enum import StrEnum

from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityType,
)

from stepstream.services.registry import errors
from stepstream.services.registry.avro_text import parse


class Level(StrEnum):
    """Required relation of a subject's next schema to its earlier ones."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def backward(self) -> bool:
        """True if the new schema must read data of the earlier ones."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """True if the earlier schemas must read data of the new one."""
        return self.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        """True if all earlier versions count, not only the last."""
        return self.endswith("_TRANSITIVE")


DEFAULT_LEVEL = Level.FULL_TRANSITIVE


def parse_level(name: object) -> Level:
    """Return the level of a name, in upper or lower case.

    Raises:
        RegistryError: 42203, no such level.
    """
    try:
        return Level(name.upper() if isinstance(name, str) else "")
    except ValueError:
        raise errors.invalid_level(name, ", ".join(Level)) from None


def incompatibilities(required: Level, schema: str, earlier: Sequence[tuple[int, str]]) -> list[str]:
    """Return the reasons why a schema may not follow `earlier`; empty: compatible.

    Args:
        required: the subject's level.
        schema: canonical text of the new schema.
        earlier: (version, canonical text), oldest first.
    """
    compared = earlier if required.transitive else earlier[-1:]
    reasons = []
    for version, text in reversed(compared):
        if required.backward:
            reasons += [f"cannot read version {version}: {reason}" for reason in _unreadable(schema, text)]
        if required.forward:
            reasons += [f"version {version} cannot read it: {reason}" for reason in _unreadable(text, schema)]
    return reasons


def _unreadable(reader: str, writer: str) -> list[str]:
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(parse(reader), parse(writer))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
    places = ", ".join(sorted(result.locations))
    return [f"{kinds} at {places}: {'; '.join(sorted(result.messages))}"]
