"""What each writing request appends to the log.

Decided from a view and pure, so that a lost race is simply decided again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepstream.services.registry import errors
from stepstream.services.registry.avro_text import canonical, normalised
from stepstream.services.registry.compatibility import Level, faults
from stepstream.services.registry.records import ConfigKey, DeleteKey, IdKey, RegistryRecord, SchemaKey, SchemaValue
from stepstream.services.registry.view import Version, View


@dataclass(frozen=True, slots=True)
class Write:
    """Records to append together, and what to answer once they are read back; no records: nothing to do."""

    answer: Any
    records: Sequence[RegistryRecord] = ()


def find(view: View, subject: str, schema: str, *, normalize: bool, deleted: bool = False) -> Version | None:
    """The newest version of a subject that holds a schema (canonical text)."""
    wanted = normalised(schema) if normalize else schema
    for version in reversed(view.versions(subject, deleted=deleted)):
        held = normalised(version.schema) if normalize else canonical(version.schema)
        if held == wanted:
            return version
    return None


def register(view: View, subject: str, schema: str, *, normalize: bool) -> Write:
    """The schema as the subject's next version, with the id it has elsewhere or the next one.

    Raises:
        RegistryError: 409, it breaks the subject's compatibility level.
    """
    held = find(view, subject, schema, normalize=normalize)
    if held is not None:
        return Write({"id": held.id})
    level = view.effective_level(subject)
    earlier = [(version.version, canonical(version.schema)) for version in view.versions(subject)]
    if found := faults(level, schema, earlier):
        raise errors.incompatible(subject, level, found)
    stored = normalised(schema) if normalize else schema
    schema_id = view.ids.get(stored, view.last_id + 1)
    return Write({"id": schema_id}, [(SchemaKey(subject, view.next_version(subject)), SchemaValue(schema_id, stored))])


def delete_subject(view: View, subject: str, *, permanent: bool) -> Write:
    """The subject out of sight (its ids still resolve), or for good.

    Raises:
        RegistryError: 40401, 40404 or 40405.
    """
    every = view.versions(subject, deleted=True)
    live = view.versions(subject)
    if not every:
        raise errors.subject_not_found(subject)
    if not permanent:
        if not live:
            raise errors.subject_soft_deleted(subject)
        numbers = [version.version for version in live]
        return Write(numbers, [(DeleteKey(subject), every[-1].version), (ConfigKey(subject), None)])
    if live:
        raise errors.subject_not_soft_deleted(subject)
    gone: list[RegistryRecord] = [(SchemaKey(subject, version.version), None) for version in every]
    return Write([version.version for version in every], [(IdKey(), view.last_id), *gone, (DeleteKey(subject), None)])


def delete_version(view: View, subject: str, number: int | None, *, permanent: bool) -> Write:
    """One version out of sight, or for good; None: the latest.

    Raises:
        RegistryError: 40401, 40402, 40406 or 40407.
    """
    version = view.version(subject, number, deleted=number is not None)
    key = SchemaKey(subject, version.version)
    if permanent:
        if not version.deleted:
            raise errors.version_not_soft_deleted(subject, version.version)
        return Write(version.version, [(IdKey(), view.last_id), (key, None)])
    if version.deleted:
        raise errors.version_soft_deleted(subject, version.version)
    return Write(version.version, [(key, SchemaValue(version.id, version.schema, deleted=True))])


def set_level(view: View, subject: str | None, level: Level) -> Write:
    """The compatibility level of a subject, or of all."""
    records: list[RegistryRecord] = [] if view.level(subject) is level else [(ConfigKey(subject), level)]
    return Write({"compatibility": level}, records)


def unset_level(view: View, subject: str | None) -> Write:
    """The subject back to the global level, or the global one back to the default.

    Raises:
        RegistryError: 40408, the subject had none of its own.
    """
    level = view.level(subject)
    if level is not None:
        return Write({"compatibilityLevel": level}, [(ConfigKey(subject), None)])
    if subject is not None:
        raise errors.no_subject_level(subject)
    return Write({"compatibilityLevel": view.effective_level(None)})
