"""Compatibility levels, decided by the `avro` package's reader-writer check."""

from collections.abc import Sequence
from enum import StrEnum

from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityType,
)

from stepstream.services.registry import errors
from stepstream.services.registry.avro_text import parsed


class Level(StrEnum):
    """How a subject's next schema must relate to its earlier ones."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def backward(self) -> bool:
        """The new schema must read what the earlier ones wrote."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """The earlier schemas must read what the new one writes."""
        return self.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        """All earlier versions count, not only the last."""
        return self.endswith("_TRANSITIVE")


DEFAULT = Level.FULL_TRANSITIVE


def level(name: object) -> Level:
    """The level of that name, in any case.

    Raises:
        RegistryError: 42203.
    """
    try:
        return Level(name.upper() if isinstance(name, str) else "")
    except ValueError:
        raise errors.invalid_level(name, ", ".join(Level)) from None


def faults(required: Level, schema: str, earlier: Sequence[tuple[int, str]]) -> list[str]:
    """What keeps a schema from following `earlier`; empty when it may.

    Args:
        required: the subject's level.
        schema: canonical text of the new schema.
        earlier: (version, canonical text), oldest first.
    """
    compared = earlier if required.transitive else earlier[-1:]
    found = []
    for version, text in reversed(compared):
        if required.backward:
            found += [f"cannot read version {version}: {why}" for why in _unreadable(schema, text)]
        if required.forward:
            found += [f"version {version} cannot read it: {why}" for why in _unreadable(text, schema)]
    return found


def _unreadable(reader: str, writer: str) -> list[str]:
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(parsed(reader), parsed(writer))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
    places = ", ".join(sorted(result.locations))
    return [f"{kinds} at {places}: {'; '.join(sorted(result.messages))}"]
